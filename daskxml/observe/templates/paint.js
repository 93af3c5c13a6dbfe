// Colours of the charts for the browser's theme, now and whenever it changes.
const dark = window.matchMedia("(prefers-color-scheme: dark)")
const paint = () => {
  const text = dark.matches ? "#c5ccd5" : "#3a424d", line = dark.matches ? "#343a43" : "#e3e6ea"
  for (const chart of charts) {
    chart.title.setv({text_color: text}, {sync: false})
    for (const part of [...chart.below, ...chart.left]) {
      part.setv({axis_label_text_color: text, major_label_text_color: text,
                 major_tick_line_color: line}, {sync: false})
    }
    for (const part of chart.center) {
      if ("grid_line_color" in part) part.setv({grid_line_color: line}, {sync: false})
    }
    for (const part of [...chart.above, ...chart.center]) {
      if ("label_text_color" in part) {
        part.setv({label_text_color: text, background_fill_color: null}, {sync: false})
      }
    }
  }
}
document.getElementById("first")?.remove()
dark.addEventListener("change", paint)
paint()
confirmed.tags = [0]
