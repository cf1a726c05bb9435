/*
 * linear.cu: y = W x; twin of kernels/ref/linear.c.
 *
 * Up to 8 rows: straight from the packed matrix, which is read once. A block takes a group of 16
 * outputs. Its inputs go to 16 *strands*: lane 4b + q of strand w takes outputs 4q .. 4q + 3 and
 * the blocks of 32 inputs (of f32: the inputs) 8w + b, 8w + b + 128, ..., so that 4 lanes read 64
 * neighbouring bytes, 16 each. In f16 and bf16, lane 4b + 2h + c takes outputs 8h .. 8h + 7 and the
 * inputs 16w + 2b + c, + 256, ... Sums of codes and 8-bit activations are exact, then
 *   acc = fma(sum, s * scale, acc);  acc = fma(m, scale * sum of x8, acc)
 * as in the reference, in ascending order for each lane; lanes add as a tree, then strands in
 * ascending order. That order depends on nothing but the number of inputs: a block has a warp for
 * two strands, which it takes one after the other, or, where there are too few groups to fill the
 * device so, one for each.
 *
 * More rows: pieces of the matrix and the activations become f16 in the stream's workspace, cuBLAS
 * multiplies with float32 sums. Each row of activations is scaled by a power of two before, so that
 * none overflows. Without cuBLAS, or room: groups of 8 rows as above.
 */
#include "kernels/cuda/weights.cuh"
#include "kernels/linear_plan.h"
#include "runtime/base/check.h"

#define WARPS 8u
#define THREADS (32 * WARPS)
#define STRANDS (2 * WARPS)
#define FEW_ROWS 8u
#define OUTPUTS PKV_PACK_ROWS /* of a group */

/* An integer below 2^22 plus this, read as a float, is 1.5 * 2^23 plus that integer. */
#define FLOAT_START 0x4b400000

/* What starts at start_of() as a float, exactly. Only sums of q8_0 may reach 2^22. */
template <int TYPE> static __device__ __forceinline__ float exact(int sum)
{
    return TYPE == PKV_W_Q8_0 ? (float)sum : __int_as_float(sum) - 12582912.0f;
}

template <int TYPE> static __device__ __forceinline__ int start_of(int x_sum)
{
    constexpr int offset = pkvi_cuda_format<TYPE>::layout.offset;
    return TYPE == PKV_W_Q8_0 ? 0 : FLOAT_START - offset * x_sum;
}

/* 32 or 16 activations of a row that share a weight's scale. */
struct activations {
    uint32_t q8[8];
    float scale;
    int sum, spill; /* 0 if it is another half's */
    uint32_t channel;
};

/* Block `number` of 32 activations, or one half of it. */
template <int HALVES>
static __device__ __forceinline__ struct activations
load_activations(const struct pkv_act &x, uint64_t number, uint32_t half)
{
    struct activations a;
    const int8_t *q8 = PKV_AT(const int8_t, x.q8) + 32 * number + 16 * half;
    const uint32_t *block = PKV_AT(const uint32_t, x.block) + 3 * number;
    const uint32_t sums = block[1], spill = block[2];
    const int first = (int16_t)(sums & 0xffff), second = (int16_t)(sums >> 16);
    const uint4 four = pkvi_cuda_load16(q8);
    a.q8[0] = four.x, a.q8[1] = four.y, a.q8[2] = four.z, a.q8[3] = four.w;
    a.scale = __uint_as_float(block[0]);
    a.spill = (int16_t)(spill & 0xffff);
    a.channel = spill >> 16;
    if constexpr (HALVES == 1) {
        const uint4 next = pkvi_cuda_load16(q8 + 16);
        a.q8[4] = next.x, a.q8[5] = next.y, a.q8[6] = next.z, a.q8[7] = next.w;
        a.sum = first + second;
    } else {
        a.sum = half == 0 ? first : second;
        a.spill = a.channel / 16 == half ? a.spill : 0;
    }
    return a;
}

/* Rows that a block takes; b beyond the last: the last once more, which is not stored. */
struct rows {
    uint32_t first, last; /* first + last is the last */
};

static __device__ __forceinline__ uint64_t row_of(const struct rows &rows, uint32_t b)
{
    return rows.first + (b < rows.last ? b : rows.last);
}

/* acc[i] += what a row's activations give; at_spill: the codes around a.channel. */
template <int TYPE>
static __device__ __forceinline__ void
add_row(const struct activations &a, const struct pkvi_cuda_words<4> *codes,
        const struct pkvi_cuda_words<4> &at_spill, const float s[4], const float m[4], float acc[4])
{
    using format = pkvi_cuda_format<TYPE>;
    const float x_scaled = a.scale * (float)a.sum;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t code = at_spill.of[i] >> (a.channel % 4 * 8) & 255;
        int sum = start_of<TYPE>(a.sum);
#pragma unroll
        for (uint32_t quad = 0; quad < 8 / format::halves; quad++) {
            sum = __dp4a((int)codes[quad].of[i], (int)a.q8[quad], sum);
        }
        sum += (TYPE == PKV_W_Q8_0 ? (int8_t)code : (int)code) * a.spill;
        acc[i] = fmaf(exact<TYPE>(sum), s[i] * a.scale, acc[i]);
        if constexpr (format::has_min) {
            acc[i] = fmaf(m[i], x_scaled, acc[i]);
        }
    }
}

/* The first `by` rows become the last. ROWS / BY times leave everything as it was. */
template <int ROWS, int BY> static __device__ __forceinline__ void turn(float acc[ROWS][4])
{
#pragma unroll
    for (int i = 0; ROWS > BY && i < 4; i++) {
        float first[BY];
#pragma unroll
        for (int b = 0; b < BY; b++) {
            first[b] = acc[b][i];
        }
#pragma unroll
        for (int b = 0; b < ROWS - BY; b++) {
            acc[b][i] = acc[b + BY][i];
        }
#pragma unroll
        for (int b = 0; b < BY; b++) {
            acc[ROWS - BY + b][i] = first[b];
        }
    }
}

/* acc[b][i] += inputs 32 k .. 32 k + 31 of output lane + i, row b; or one half of those. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void
add_block(const struct pkv_act &x, const struct rows &rows, uint32_t k, uint32_t half,
          const struct pkvi_cuda_sub &sub, uint32_t lane, float acc[ROWS][4])
{
    using format = pkvi_cuda_format<TYPE>;
    constexpr uint32_t quads = 8 / format::halves, PAIR = ROWS < 2 ? 1 : 2;
    struct pkvi_cuda_words<4> codes[quads];
    float s[4], m[4];
#pragma unroll
    for (uint32_t quad = 0; quad < quads; quad++) {
        codes[quad] = pkvi_cuda_quad<TYPE, 4>(sub.planes, lane, half * quads + quad);
    }
    pkvi_cuda_scales<TYPE, 4>(sub, lane, half, s, m);
#pragma unroll 1 /* two rows at a time, which fit into registers: acc turns under them */
    for (uint32_t first = 0; first < ROWS; first += PAIR) {
#pragma unroll
        for (uint32_t b = 0; b < PAIR; b++) {
            const struct activations a = load_activations<format::halves>(
                x, row_of(rows, first + b) * (x.cols / 32) + k, half);
            add_row<TYPE>(a, codes, pkvi_cuda_quad<TYPE, 4>(sub.planes, lane, a.channel / 4), s, m,
                          acc[b]);
        }
        turn<ROWS, PAIR>(acc);
    }
}

/*
 * acc[b][i] += weight of output lane + i for input k * what row b has there; inputs first, first +
 * step, ... Weights of several inputs are on their way at once.
 */
template <int TYPE, int ROWS, int OUT>
static __device__ __forceinline__ void
sum_floats(const struct pkv_act &x, const struct rows &rows, const uint8_t *group, uint32_t first,
           uint32_t step, uint32_t lane, float acc[ROWS][OUT])
{
    constexpr uint32_t record_bytes = pkvi_cuda_format<TYPE>::layout.record_bytes;
    constexpr uint32_t most = ROWS < FEW_ROWS ? 4 : 2;
    for (uint32_t k = first; k < x.cols; k += most * step) {
        const uint32_t left = (x.cols - k - 1) / step + 1, count = left < most ? left : most;
        float w[most][OUT], value[most][ROWS];
#pragma unroll
        for (uint32_t j = 0; j < most; j++) { /* those beyond: the last once more, unused */
            const uint32_t at = k + (j < count ? j : count - 1) * step;
            pkvi_cuda_floats<TYPE, OUT>(group + (uint64_t)at * record_bytes, lane, w[j]);
#pragma unroll
            for (uint32_t b = 0; b < ROWS; b++) {
                value[j][b] = PKV_AT(const float, x.f32)[row_of(rows, b) * x.cols + at];
            }
        }
#pragma unroll
        for (uint32_t j = 0; j < most; j++) {
#pragma unroll
            for (uint32_t i = 0; j < count && i < ROWS * OUT; i++) {
                acc[i / OUT][i % OUT] =
                    fmaf(w[j][i % OUT], value[j][i / OUT], acc[i / OUT][i % OUT]);
            }
        }
    }
}

/* acc[b][i]: what a lane of a strand has of output 4 * (its number % 4) + i, row b. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void sum_lane(const struct pkv_act &x, const struct rows &rows,
                                                const uint8_t *data, uint32_t group,
                                                uint32_t strand, float acc[ROWS][4])
{
    using format = pkvi_cuda_format<TYPE>;
    const uint32_t lane = threadIdx.x % 32;
    data += group * pkvi_cuda_group_bytes<TYPE>(x.cols);
    if constexpr (format::quantised) {
        for (uint32_t k = 8 * strand + lane / 4; k < x.cols / 32; k += 8 * STRANDS) {
            const struct pkvi_cuda_sub sub = pkvi_cuda_sub_at<TYPE>(data, k);
#pragma unroll
            for (uint32_t half = 0; half < format::halves; half++) {
                add_block<TYPE, ROWS>(x, rows, k, half, sub, lane % 4 * 4, acc);
            }
        }
    } else if constexpr (TYPE == PKV_W_F32) {
        sum_floats<TYPE, ROWS, 4>(x, rows, data, 8 * strand + lane / 4, 8 * STRANDS, lane % 4 * 4,
                                  acc);
    } else {
        float both[ROWS][8] = {};
        sum_floats<TYPE, ROWS, 8>(x, rows, data, 16 * strand + lane / 4 * 2 + lane % 2,
                                  16 * STRANDS, lane / 2 % 2 * 8, both);
#pragma unroll
        for (uint32_t b = 0; b < ROWS; b++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) { /* a lane keeps one half and gives the other */
                const float keep = lane % 2 ? both[b][4 + i] : both[b][i];
                const float give = lane % 2 ? both[b][i] : both[b][4 + i];
                acc[b][i] = keep + __shfl_xor_sync(PKV_WARP_ALL, give, 1);
            }
        }
    }
}

/* args.part[number], without an index into parameters, which would copy them. */
static __device__ __forceinline__ struct pkv_linear_part part_of(const struct pkv_args_linear &args,
                                                                 uint32_t number)
{
    struct pkv_linear_part part = args.part[0];
#pragma unroll
    for (uint32_t p = 1; p < PKV_LINEAR_PARTS; p++) {
        if (p == number) {
            part = args.part[p];
        }
    }
    return part;
}

/* The sum in fixed order, then where it goes; a thread an output and row. */
template <int ROWS>
static __device__ __forceinline__ void store(const struct pkv_linear_part &part, uint32_t group,
                                             uint32_t first_row, uint32_t rows,
                                             const float (*sums)[ROWS][OUTPUTS])
{
    const uint32_t b = threadIdx.x / OUTPUTS, i = threadIdx.x % OUTPUTS;
    const uint32_t output = group * OUTPUTS + i;
    if (b >= ROWS || first_row + b >= rows || output >= part.w.rows) {
        return;
    }
    float sum = 0.0f;
    for (uint32_t strand = 0; strand < STRANDS; strand++) {
        sum += sums[strand][b][i];
    }
    if (part.w.bias) {
        sum += PKV_AT(const float, part.w.bias)[output];
    }
    float *y = PKV_AT(float, part.y) + (uint64_t)(first_row + b) * part.y_stride + output;
    *y = part.add ? *y + sum : sum;
}

/* Threads that a multiprocessor has registers for: 3 blocks of WARPS, or 2 where more would spill.
 */
template <int ROWS> static constexpr uint32_t resident = (ROWS == 1 ? 3 : 2) * THREADS;

/*
 * A group of all parts' groups and ROWS rows. Blocks of the same weights follow each other, so that
 * all but the first find them in L2. Of WARPS or of STRANDS warps.
 */
template <int ROWS>
static __global__ void __launch_bounds__(resident<ROWS>, 1) few(struct pkv_args_linear args)
{
    PKV_SHARED(float, sums, [STRANDS][ROWS][OUTPUTS]);
    const uint32_t lane = threadIdx.x % 32, row_blocks = (args.rows + ROWS - 1) / ROWS;
    const uint32_t first_row = blockIdx.x % row_blocks * ROWS;
    uint32_t group = blockIdx.x / row_blocks, number = 0;
#pragma unroll
    for (uint32_t p = 0; p + 1 < PKV_LINEAR_PARTS; p++) {
        const uint32_t groups = (args.part[p].w.rows + OUTPUTS - 1) / OUTPUTS;
        if (p == number && p + 1 < args.part_count && group >= groups) {
            group -= groups;
            number++;
        }
    }
    const struct rows rows = {first_row, args.rows - 1 - first_row};
    const struct pkv_matrix w = part_of(args, number).w;
    const uint8_t *data = PKV_AT(const uint8_t, w.data);
    for (uint32_t strand = threadIdx.x / 32; strand < STRANDS; strand += blockDim.x / 32) {
        float acc[ROWS][4] = {};
#define SUM(TYPE) sum_lane<TYPE, ROWS>(args.x, rows, data, group, strand, acc)
        PKV_CUDA_EACH_TYPE(w.type, SUM)
#undef SUM
#pragma unroll
        for (uint32_t b = 0; b < ROWS; b++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                for (int distance = 4; distance < 32; distance *= 2) {
                    acc[b][i] += __shfl_xor_sync(PKV_WARP_ALL, acc[b][i], distance);
                }
                if (lane < 4) {
                    sums[strand][b][4 * lane + i] = acc[b][i];
                }
            }
        }
    }
    __syncthreads();
    store<ROWS>(part_of(args, number), group, first_row, args.rows, sums);
}

static uint32_t ceil_div(uint64_t a, uint32_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

static enum pkv_status launch_few(const struct pkvi_cuda_stream *stream,
                                  const struct pkv_args_linear *args)
{
    uint32_t groups = 0;
    for (uint32_t p = 0; p < args->part_count; p++) {
        groups += ceil_div(args->part[p].w.rows, OUTPUTS);
    }
    if (groups == 0) {
        return PKV_OK;
    }
    const uint32_t threads = groups <= stream->multiprocessors ? 2 * THREADS : THREADS;
    if (args->rows == 1) {
        PKV_LAUNCH((few<1>), groups, threads, 0, stream->stream, *args);
    } else if (args->rows == 2) {
        PKV_LAUNCH((few<2>), groups, threads, 0, stream->stream, *args);
    } else if (args->rows <= 4) {
        PKV_LAUNCH((few<4>), groups, threads, 0, stream->stream, *args);
    } else {
        const uint32_t row_blocks = ceil_div(args->rows, FEW_ROWS);
        PKV_LAUNCH((few<FEW_ROWS>), groups * row_blocks, threads, 0, stream->stream, *args);
    }
    return pkvi_cuda_check(cudaGetLastError(), "launch of linear");
}

/* Activation `col` of a row as the kernels above take it. */
static __device__ __forceinline__ float activation(const struct pkv_act &x, bool quantised,
                                                   uint64_t row, uint32_t col)
{
    const uint64_t at = row * x.cols + col;
    if (!quantised) {
        return PKV_AT(const float, x.f32)[at];
    }
    const struct pkv_act_block *block = PKV_AT(const struct pkv_act_block, x.block) + at / 32;
    const int spill = col % 32 == block->channel ? block->spill : 0;
    return (float)(PKV_AT(const int8_t, x.q8)[at] + spill) * block->scale;
}

/* A piece of the product on its way through the workspace. */
struct product {
    uint16_t *x, *w;     /* f16 [rows][stride], [outputs][stride]; 0 beyond the inputs */
    float *x_scale, *xw; /* [rows], [rows][outputs] */
    uint32_t stride;     /* inputs, made a multiple of 8 */
    uint32_t first_row, rows, first_output, outputs;
};

/* p.x[row] * p.x_scale[row] = activations; the largest of p.x is below 2^15. A block a row. */
static __global__ void __launch_bounds__(THREADS)
    narrow(struct pkv_act x, bool quantised, struct product p)
{
    PKV_SHARED(float, part, [WARPS]);
    const uint64_t row = p.first_row + blockIdx.x;
    float largest = 0.0f;
    for (uint32_t col = threadIdx.x; col < x.cols; col += THREADS) {
        largest = fmaxf(largest, fabsf(activation(x, quantised, row, col)));
    }
    largest = pkvi_cuda_warp_max(largest);
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = largest;
    }
    __syncthreads();
    for (uint32_t warp = 0; warp < WARPS; warp++) {
        largest = fmaxf(largest, part[warp]);
    }
    /* 2^exponent <= largest; of 0, subnormal and infinite ones anything goes */
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
    const int power = exponent < -100 || exponent > 127 ? 0 : exponent - 14;
    const float down = __uint_as_float((uint32_t)(127 - power) << 23);
    for (uint32_t col = threadIdx.x; col < p.stride; col += THREADS) {
        const float value = col < x.cols ? activation(x, quantised, row, col) * down : 0.0f;
        p.x[(uint64_t)blockIdx.x * p.stride + col] = pkvi_cuda_f32_to_f16(value);
    }
    if (threadIdx.x == 0) {
        p.x_scale[blockIdx.x] = __uint_as_float((uint32_t)(127 + power) << 23);
    }
}

/* p.w = weights of p.outputs outputs. A warp takes 8 outputs and 32 inputs, a lane 8 inputs. */
template <int TYPE>
static __global__ void __launch_bounds__(THREADS) widen(struct pkv_matrix w, struct product p)
{
    const uint32_t local = 8 * blockIdx.x + threadIdx.x % 32 / 4;
    const uint32_t col = 32 * (blockIdx.y * WARPS + threadIdx.x / 32) + threadIdx.x % 4 * 8;
    if (local >= p.outputs || col >= p.stride) {
        return;
    }
    const uint32_t output = p.first_output + local, left = w.cols - col;
    const uint8_t *group =
        PKV_AT(const uint8_t, w.data) + output / OUTPUTS * pkvi_cuda_group_bytes<TYPE>(w.cols);
    float v[8];
    pkvi_cuda_octet<TYPE>(group, output % OUTPUTS, col, left < 8 ? left : 8, v);
    const uint4 eight = {pkvi_cuda_f32_to_f16x2(v[0], v[1]), pkvi_cuda_f32_to_f16x2(v[2], v[3]),
                         pkvi_cuda_f32_to_f16x2(v[4], v[5]), pkvi_cuda_f32_to_f16x2(v[6], v[7])};
    pkvi_cuda_store16(p.w + (uint64_t)local * p.stride + col, eight);
}

/* y = p.xw * p.x_scale, and the rest. */
static __global__ void __launch_bounds__(THREADS)
    finish(struct pkv_linear_part part, struct product p)
{
    const uint32_t local = blockIdx.y * THREADS + threadIdx.x, row = blockIdx.x;
    if (local >= p.outputs) {
        return;
    }
    const uint32_t output = p.first_output + local;
    float sum = __fmul_rn(p.xw[(uint64_t)row * p.outputs + local], p.x_scale[row]);
    if (part.w.bias) {
        sum += PKV_AT(const float, part.w.bias)[output];
    }
    float *y = PKV_AT(float, part.y) + (uint64_t)(p.first_row + row) * part.y_stride + output;
    *y = part.add ? *y + sum : sum;
}

/* One piece of one part: its weights, the product, and where it goes. */
static enum pkv_status multiply(const struct pkvi_cuda_stream *stream,
                                const struct pkv_linear_part *part, const struct product *p)
{
    const dim3 weights(ceil_div(p->outputs, 8), ceil_div(p->stride, 32 * WARPS));
#define WIDEN(TYPE) PKV_LAUNCH((widen<TYPE>), weights, THREADS, 0, stream->stream, part->w, *p)
    PKV_CUDA_EACH_TYPE(part->w.type, WIDEN)
#undef WIDEN
    const struct pkvi_cublas *blas = stream->blas;
    const float one = 1.0f, zero = 0.0f;
    /* to cuBLAS, which has columns: xw [outputs x rows] = w^T [outputs x stride] x */
    PKV_TRY(pkvi_cuda_check_blas(blas,
                                 blas->gemm(blas->handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)p->outputs,
                                            (int)p->rows, (int)p->stride, &one, p->w, CUDA_R_16F,
                                            (int)p->stride, p->x, CUDA_R_16F, (int)p->stride, &zero,
                                            p->xw, CUDA_R_32F, (int)p->outputs, CUBLAS_COMPUTE_32F,
                                            CUBLAS_GEMM_DEFAULT),
                                 "cublasGemmEx of linear"));
    const dim3 outputs(p->rows, ceil_div(p->outputs, THREADS));
    PKV_LAUNCH(finish, outputs, THREADS, 0, stream->stream, *part, *p);
    return pkvi_cuda_check(cudaGetLastError(), "launch of linear");
}

static bool quantised(const struct pkv_linear_part *part)
{
    return pkvi_layouts[part->w.type].low_bits > 0;
}

/* Every part for rows p.first_row ..; `most` outputs at a time. */
static enum pkv_status multiply_rows(const struct pkvi_cuda_stream *stream,
                                     const struct pkv_args_linear *args, struct product p,
                                     uint32_t most)
{
    for (uint32_t i = 0; i < args->part_count; i++) {
        const struct pkv_linear_part *part = &args->part[i];
        if (i == 0 || quantised(part) != quantised(part - 1)) {
            PKV_LAUNCH(narrow, p.rows, THREADS, 0, stream->stream, args->x, quantised(part), p);
        }
        for (p.first_output = 0; p.first_output < part->w.rows; p.first_output += p.outputs) {
            const uint32_t left = part->w.rows - p.first_output;
            p.outputs = left < most ? left : most;
            PKV_TRY(multiply(stream, part, &p));
        }
    }
    return PKV_OK;
}

/* Cuts rows, then outputs, by the workspace: activations take a quarter at most. */
static enum pkv_status launch_many(const struct pkvi_cuda_stream *stream,
                                   const struct pkv_args_linear *args)
{
    struct product p = {};
    p.stride = ceil_div(args->x.cols, 8) * 8;
    const uint64_t row_bytes = 2 * (uint64_t)p.stride, room = stream->workspace_bytes;
    const uint64_t fit = room / 4 / (row_bytes + 4) / 64 * 64;
    const uint32_t rows = args->rows < fit ? args->rows : (uint32_t)fit;
    const uint64_t x_bytes = (rows * row_bytes + 255) / 256 * 256;
    const uint64_t scale_bytes = (4 * (uint64_t)rows + 255) / 256 * 256;
    const uint64_t most =
        rows == 0 ? 0 : (room - x_bytes - scale_bytes) / (row_bytes + 4 * (uint64_t)rows) / 64 * 64;
    if (most == 0) {
        return launch_few(stream, args);
    }
    p.x = PKV_AT(uint16_t, stream->workspace);
    p.x_scale = PKV_AT(float, stream->workspace + x_bytes);
    p.w = PKV_AT(uint16_t, stream->workspace + x_bytes + scale_bytes);
    p.xw = PKV_AT(float, stream->workspace + x_bytes + scale_bytes + most * row_bytes);
    for (p.first_row = 0; p.first_row < args->rows; p.first_row += p.rows) {
        const uint32_t left = args->rows - p.first_row;
        p.rows = left < rows ? left : rows;
        PKV_TRY(multiply_rows(stream, args, p, most < INT32_MAX ? (uint32_t)most : INT32_MAX));
    }
    return PKV_OK;
}

static enum pkv_status launch(void *native_stream, const void *arguments)
{
    const struct pkvi_cuda_stream *stream = (const struct pkvi_cuda_stream *)native_stream;
    const struct pkv_args_linear *args = (const struct pkv_args_linear *)arguments;
    if (args->rows == 0 || args->part_count == 0) {
        return PKV_OK;
    }
    if (args->rows <= FEW_ROWS || !stream->blas) {
        return launch_few(stream, args);
    }
    return launch_many(stream, args);
}

const struct pkv_kernel pkvi_kernel_linear_cuda = {
    PKV_OP_LINEAR, "cuda", 0, sizeof(struct pkv_args_linear), launch, pkvi_cost_linear,
};
