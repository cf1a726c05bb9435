/*
 * speeds.c: what bounds a card, as one line of JSON: how fast it reads its memory, large copies
 * over the link both ways, f16 matrix products of cuBLAS; and our GEMV of a Q4_K matrix besides.
 *
 *   speeds [--mib 1024] [--gemv-rows 8192] [--gemv-cols 28672] [--gemm 8192]
 *
 * Exit status: 0 = measured, 1 = something failed, 77 = no device.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/device/dev_cuda.h"
#include "runtime/device/device.h"
#include "tests/gpu/card.h"
#include "tests/gpu/rig.h"

enum { SAMPLES = 5 };

struct options {
    uint64_t bytes;
    uint32_t gemv_rows, gemv_cols, gemm;
};

/* The best of some: a bound is what the card can do. */
static double read_gbps(struct rig *rig, pkv_addr memory, uint64_t bytes)
{
    const struct pkvt_read args = {.memory = memory, .sum = memory, .bytes = bytes};
    double best = 0;
    for (int i = 0; i < SAMPLES; i++) {
        RIG(rig, pkvi_event_record(rig->begin, rig->compute));
        RIG(rig, pkvi_launch(rig->compute, &pkvt_card_read, &args));
        RIG(rig, pkvi_event_record(rig->end, rig->compute));
        const double gbps = (double)bytes / 1e3 / (rig_us(rig, rig->begin, rig->end) + 1e-3);
        best = gbps > best ? gbps : best;
    }
    return best;
}

static double copy_gbps(struct rig *rig, pkv_addr to, pkv_addr from, uint64_t bytes)
{
    const struct pkv_span span = {to, from, bytes};
    double best = 0;
    for (int i = 0; i < SAMPLES; i++) {
        RIG(rig, pkvi_event_record(rig->begin, rig->normal));
        RIG(rig, pkvi_copy_async(rig->normal, &span, 1));
        RIG(rig, pkvi_event_record(rig->end, rig->normal));
        const double gbps = (double)bytes / 1e3 / (rig_us(rig, rig->begin, rig->end) + 1e-3);
        best = gbps > best ? gbps : best;
    }
    return best;
}

/* A product of two square f16 matrices of `n`; 0 without cuBLAS. */
static double gemm_tflops(struct rig *rig, pkv_addr memory, uint32_t n)
{
    const struct pkvi_cublas *blas = cuda_stream(rig->compute)->native.blas;
    const float one = 1, zero = 0;
    const int size = (int)n;
    double best = 0;
    for (int i = 0; blas && i < SAMPLES; i++) {
        const uint64_t matrix = 2ull * n * n;
        RIG(rig, pkvi_event_record(rig->begin, rig->compute));
        RIG(rig, pkvi_cuda_check_blas(
                     blas,
                     blas->gemm(blas->handle, CUBLAS_OP_T, CUBLAS_OP_N, size, size, size, &one,
                                (const void *)(uintptr_t)memory, CUDA_R_16F, size,
                                (const void *)(uintptr_t)(memory + matrix), CUDA_R_16F, size, &zero,
                                (void *)(uintptr_t)(memory + 2 * matrix), CUDA_R_32F, size,
                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                     "cublasGemmEx"));
        RIG(rig, pkvi_event_record(rig->end, rig->compute));
        const double us = rig_us(rig, rig->begin, rig->end) + 1e-3;
        const double tflops = 2.0 * n * n * n / us / 1e6;
        best = tflops > best ? tflops : best;
    }
    return best;
}

static struct options parse(const struct rig *rig, int argc, char **argv)
{
    struct options o = {(uint64_t)1 << 30, 8192, 28672, 8192};
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--mib") == 0) {
            o.bytes = rig_number(rig, name, value, 1, 1 << 16) << 20;
        } else if (strcmp(name, "--gemv-rows") == 0) {
            o.gemv_rows = (uint32_t)rig_number(rig, name, value, 16, 1 << 20);
        } else if (strcmp(name, "--gemv-cols") == 0) {
            o.gemv_cols = (uint32_t)rig_number(rig, name, value, 256, 1 << 20) / 256 * 256;
        } else {
            o.gemm = (uint32_t)rig_number(rig, name, value, 16, 1 << 14);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    struct rig rig = {.program = "speeds"};
    const struct options o = parse(&rig, argc, argv);
    rig_open(&rig, "speeds", o.gemv_rows, o.gemv_cols);
    const uint64_t products = 8ull * o.gemm * o.gemm; /* f16, f16, f32 */
    const pkv_addr memory =
        rig_alloc(&rig, PKV_MEM_DEVICE, o.bytes > products ? o.bytes : products);
    const pkv_addr host = rig_alloc(&rig, PKV_MEM_PINNED, o.bytes);
    memset((void *)(uintptr_t)host, 0, o.bytes);
    rig_fill(&rig, memory, o.bytes > products ? o.bytes : products, false);

    const double read = read_gbps(&rig, memory, o.bytes);
    const double load = copy_gbps(&rig, memory, host, o.bytes);
    const double store = copy_gbps(&rig, host, memory, o.bytes);
    const double gemv = rig_gemv_us(&rig, 50), tflops = gemm_tflops(&rig, memory, o.gemm);
    printf("{\"schema\":\"pivotkv/gpu-speeds/1\",\"bytes\":%" PRIu64
           ",\"device_read_gbps\":%.4f,\"load_gbps\":%.4f,\"store_gbps\":%.4f,",
           o.bytes, read, load, store);
    printf("\"gemv_rows\":%u,\"gemv_cols\":%u,\"gemv_us\":%.4f,\"gemv_gbps\":%.4f,"
           "\"gemv_bound_gbps\":%.4f,\"gemv_share\":%.4f,\"f16_tflops\":",
           o.gemv_rows, o.gemv_cols, gemv, (double)rig.gemv_bytes / 1e3 / gemv, read,
           (double)rig.gemv_bytes / 1e3 / gemv / read);
    if (tflops > 0) {
        printf("%.6f}\n", tflops);
    } else {
        printf("null}\n"); /* no cuBLAS */
    }
    rig_close(&rig);
    return 0;
}
