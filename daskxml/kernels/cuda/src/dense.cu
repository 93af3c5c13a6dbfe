// Dense layers: elementwise operations and sums on (rows, units) matrices.

KERNEL relu(float* x, int64 n) {
    EACH(i, n) x[i] = x[i] <= 0.0f ? 0.0f : x[i];  // NaN stays
}

KERNEL sigmoid(float* x, int64 n) {
    EACH(i, n) x[i] = 1.0f / (1.0f + expf(-x[i]));
}

KERNEL relu_gradient(float* delta, const float* active, int64 n) {
    EACH(i, n) delta[i] = active[i] <= 0.0f ? 0.0f : delta[i];
}

KERNEL sigmoid_gradient(float* delta, const float* active, float keep, int64 n) {
    EACH(i, n) {
        float value = keep * active[i];
        delta[i] *= value * (1.0f - value);
    }
}

// `first` is the number of the first entry in the batch: first_row * columns.
KERNEL dropout(
    float* x, int64 first, const uint64* place, uint64 key, uint64 limit, float scale, int64 n) {
    if (place) key = *place;
    EACH(i, n) x[i] = is_kept(key, first + i, limit) ? scale * x[i] : 0.0f;
}

KERNEL fill_rows(float* out, const float* row, int columns, int64 n) {
    EACH(i, n) out[i] = row[i % columns];
}

// out[part, j] = the sum of x[:, j] over `height` rows from part * height; a block is 32 x 8.
KERNEL column_sums(float* out, const float* x, int64 rows, int columns, int64 height) {
    __shared__ float parts[8][32];
    int column = blockIdx.x * 32 + threadIdx.x;
    int64 first = blockIdx.y * height, last = least(first + height, rows);
    float sum = 0.0f;
    if (column < columns)
        for (int64 i = first + threadIdx.y; i < last; i += 8) sum += x[i * columns + column];
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int y = 1; y < 8; ++y) sum += parts[y][threadIdx.x];
        out[blockIdx.y * (int64)columns + column] = sum;
    }
}

KERNEL scale_rows(float* out, const float* x, const float* factors, int64 units, int64 n) {
    EACH(i, n) out[i] = factors[i / units] * x[i];
}
