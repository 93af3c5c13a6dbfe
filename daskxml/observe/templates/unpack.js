// Flat arrays of all lines of a chart become a list for each, for Bokeh's `multi_line`.
const [x, y, counts, name, color] = cb_obj.tags, xs = [], ys = []
let begin = 0
for (const count of counts) {
  xs.push(Array.from({length: count}, (_, point) => x[begin + point]))
  ys.push(Array.from({length: count}, (_, point) => y[begin + point]))
  begin += count
}
cb_obj.setv({data: {xs, ys, name, color}}, {sync: false})
