// The sparse first layer: rows are read in row_offset, one block for each row of the batch.

KERNEL row_lengths(float* out, const int64* indptr, const int64* rows, int64 n) {
    EACH(i, n) out[i] = indptr[rows[i] + 1] - indptr[rows[i]];
}

KERNEL row_sizes(int* out, const int64* indptr, const int64* rows, int64 n) {
    EACH(i, n) out[i] = indptr[rows[i] + 1] - indptr[rows[i]];
}

// out[i] = bias + x[rows[i]] @ weight: a thread for each unit, entries through shared memory.
KERNEL sparse_forward(
    float* out, const int64* indptr, const int* indices, const float* data, const int64* rows,
    const float* weight, const float* bias, int units,
    int64 first_row, int64 columns, uint64 key, uint64 limit, float scale) {
    __shared__ int features[128];
    __shared__ float values[128];
    int64 row = rows[blockIdx.x], stop = indptr[row + 1];
    int unit = blockIdx.y * blockDim.x + threadIdx.x;
    float sum = unit < units ? bias[unit] : 0.0f;
    for (int64 start = indptr[row]; start < stop; start += blockDim.x) {
        int64 j = start + threadIdx.x;
        __syncthreads();
        if (j < stop) {
            uint64 counter = (first_row + blockIdx.x) * columns + indices[j];
            features[threadIdx.x] = indices[j];
            float value = (data ? data[j] : 1.0f) * scale;
            values[threadIdx.x] = is_kept(key, counter, limit) ? value : 0.0f;
        }
        __syncthreads();
        int many = least(blockDim.x, stop - start);
        if (unit < units)
            for (int e = 0; e < many; ++e)
                sum += values[e] * weight[(int64)features[e] * units + unit];
    }
    if (unit < units) out[(int64)blockIdx.x * units + unit] = sum;
}

KERNEL densify(
    float* out, const int64* indptr, const int* indices, const float* data, const int64* rows,
    int64 first_row, int64 columns, uint64 key, uint64 limit, float scale) {
    int64 row = rows[blockIdx.x];
    float* target = out + blockIdx.x * columns;
    for (int64 c = threadIdx.x; c < columns; c += blockDim.x) target[c] = 0.0f;
    __syncthreads();
    for (int64 j = indptr[row] + threadIdx.x; j < indptr[row + 1]; j += blockDim.x) {
        uint64 counter = (first_row + blockIdx.x) * columns + indices[j];
        if (is_kept(key, counter, limit)) target[indices[j]] = (data ? data[j] : 1.0f) * scale;
    }
}

// Some rows of a batch, from where they lie to where a captured step reads them: row i begins at
// offsets[i] there, at begins[i] here. Dropped entries have the value 0; what the entries leave of
// the room gets the column -1.
KERNEL stage_rows(
    int* out_indices, int* out_rows, float* out_values, const int64* offsets, const int64* begins,
    const int* indices, const float* data, int64 rows, int64 room,
    int64 first_row, int64 columns, uint64 key, uint64 limit, float scale) {
    int64 row = first_row + blockIdx.x, to = offsets[row], from = begins[row];
    for (int64 j = threadIdx.x; j < offsets[row + 1] - to; j += blockDim.x) {
        int column = indices[from + j];
        out_indices[to + j] = column;
        out_rows[to + j] = row;
        float value = (data ? data[from + j] : 1.0f) * scale;
        out_values[to + j] = is_kept(key, row * columns + column, limit) ? value : 0.0f;
    }
    int64 free = offsets[rows] + row * blockDim.x + threadIdx.x;
    for (int64 j = free; j < room; j += rows * blockDim.x) out_indices[j] = -1;
}

// All entries, in order; those of row i begin at offsets[i]. Dropped entries have the value 0.
KERNEL write_entries(
    int* out_columns, int* out_rows, float* out_values, const int* offsets,
    const int64* indptr, const int* indices, const float* data, const int64* rows, int64 row_offset,
    int64 first_row, int64 columns, uint64 key, uint64 limit, float scale) {
    int64 row = rows[blockIdx.x], start = indptr[row], stop = indptr[row + 1];
    for (int64 j = start + threadIdx.x; j < stop; j += blockDim.x) {
        int64 at = offsets[blockIdx.x] + (j - start);
        uint64 counter = (first_row + blockIdx.x) * columns + indices[j];
        out_columns[at] = indices[j];
        out_rows[at] = row_offset + blockIdx.x;
        out_values[at] = is_kept(key, counter, limit) ? (data ? data[j] : 1.0f) * scale : 0.0f;
    }
}

// weight[f] += factor * sum of values[e] * delta[rows[e]] over the entries of feature f: one block
// for each feature, so one writer for each weight.
KERNEL update_features(
    float* weight, const int* features, const int* starts, const int* rows, const float* values,
    const float* delta, const float* place, float of_place, const int* count, int units) {
    int i = blockIdx.x;
    if (i >= *count) return;
    float factor = rate_of(place, of_place);
    float* target = weight + (int64)features[i] * units;
    for (int c = threadIdx.x; c < units; c += blockDim.x) {
        float sum = 0.0f;
        for (int e = starts[i]; e < starts[i + 1]; ++e)
            sum += values[e] * delta[(int64)rows[e] * units + c];
        target[c] += factor * sum;
    }
}

// out[i] = sum of values[e] * delta[rows[e]] over the entries of feature first + i, if it exists.
KERNEL gather_rows(
    float* out, const int64* starts, const int* rows, const float* values, const float* delta,
    int units, const int* device_count, int first) {
    int64 i = blockIdx.x;
    if (device_count && first + i >= *device_count) return;
    for (int c = threadIdx.x; c < units; c += blockDim.x) {
        float sum = 0.0f;
        for (int64 e = starts[i]; e < starts[i + 1]; ++e)
            sum += values[e] * delta[(int64)rows[e] * units + c];
        out[i * units + c] = sum;
    }
}
