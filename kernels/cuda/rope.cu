/*
 * rope.cu: rotary position embedding, after RMS norm over each head where the model has it; twin of
 * kernels/ref/rope.c. A warp a head of q or k; a pair of channels a lane, so nobody else reads
 * what a lane writes. Source: Su et al., arXiv:2104.09864.
 */
#include "kernels/addr.h"
#include "kernels/cost.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

#define THREADS 256u
#define WARPS (THREADS / 32)

static __global__ void __launch_bounds__(THREADS) rope_table(struct pkv_args_rope_table args)
{
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (uint64_t)args.rows * args.pairs) {
        return;
    }
    const double position = (double)PKV_AT(const int32_t, args.positions)[i / args.pairs];
    const double angle = position * PKV_AT(const double, args.freq)[i % args.pairs];
    float *table = PKV_AT(float, args.table) + 2 * i;
    table[0] = (float)(args.gain * cos(angle));
    table[1] = (float)(args.gain * sin(angle));
}

static __device__ void rotate_head(const struct pkv_args_rope &args, float *x, const float *table,
                                   const float *weight, float *gain)
{
    const uint32_t lane = threadIdx.x % 32;
    float scale = 1.0f;
    if (weight) {
        float sum = 0.0f;
        for (uint32_t i = lane; i < args.head_dim; i += 32) {
            sum += x[i] * x[i];
        }
        sum = pkvi_cuda_warp_sum(sum);
        scale = 1.0f / sqrtf(sum / (float)args.head_dim + args.eps);
        if (gain && lane == 0) {
            *gain = scale;
        }
        __syncwarp();
    }
    for (uint32_t i = lane; i < args.pairs; i += 32) {
        const uint32_t a = args.halves ? i : 2 * i, b = args.halves ? i + args.pairs : 2 * i + 1;
        const float c = table[2 * i], s = table[2 * i + 1];
        const float xa = weight ? x[a] * scale * weight[a] : x[a];
        const float xb = weight ? x[b] * scale * weight[b] : x[b];
        x[a] = xa * c - xb * s;
        x[b] = xa * s + xb * c;
    }
    for (uint32_t i = 2 * args.pairs + lane; weight && i < args.head_dim; i += 32) {
        x[i] = x[i] * scale * weight[i];
    }
}

static __global__ void __launch_bounds__(THREADS) rope(struct pkv_args_rope args)
{
    const uint32_t heads = args.heads + args.kv_heads;
    const uint64_t unit = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const uint32_t row = (uint32_t)(unit / heads), head = (uint32_t)(unit % heads);
    if (row >= args.rows) {
        return;
    }
    const float *table = PKV_AT(const float, args.table) + (uint64_t)row * args.pairs * 2;
    if (head < args.heads) {
        float *q = PKV_AT(float, args.q) + (uint64_t)row * args.q_stride;
        float *gain = PKV_AT(float, args.q_gain);
        rotate_head(args, q + head * args.head_dim, table, PKV_AT(const float, args.q_norm),
                    gain ? gain + (uint64_t)row * args.heads + head : NULL);
    } else {
        float *k = PKV_AT(float, args.k) + (uint64_t)row * args.k_stride;
        rotate_head(args, k + (head - args.heads) * args.head_dim, table,
                    PKV_AT(const float, args.k_norm), NULL);
    }
}

static enum pkv_status launch_table(void *native_stream, const void *arguments)
{
    const struct pkv_args_rope_table *args = (const struct pkv_args_rope_table *)arguments;
    const uint64_t pairs = (uint64_t)args->rows * args->pairs;
    if (pairs == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(rope_table, (uint32_t)((pairs + THREADS - 1) / THREADS), THREADS, 0,
               pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of rope_table");
}

static enum pkv_status launch_rope(void *native_stream, const void *arguments)
{
    const struct pkv_args_rope *args = (const struct pkv_args_rope *)arguments;
    const uint64_t units = (uint64_t)args->rows * (args->heads + args->kv_heads);
    if (units == 0) {
        return PKV_OK;
    }
    PKV_LAUNCH(rope, (uint32_t)((units + WARPS - 1) / WARPS), THREADS, 0,
               pkvi_cuda_native(native_stream), *args);
    return pkvi_cuda_check(cudaGetLastError(), "launch of rope");
}

const struct pkv_kernel pkvi_kernel_rope_table_cuda = {
    PKV_OP_ROPE_TABLE,    "cuda", 0, sizeof(struct pkv_args_rope_table), launch_table,
    pkvi_cost_rope_table,
};

const struct pkv_kernel pkvi_kernel_rope_cuda = {
    PKV_OP_ROPE, "cuda", 0, sizeof(struct pkv_args_rope), launch_rope, pkvi_cost_rope,
};
