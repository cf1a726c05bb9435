/* mistakes.h: kernels with a mistake each, which tests/simt must notice (test_mistakes.py). */
#ifndef PKV_SIMT_MISTAKES_H
#define PKV_SIMT_MISTAKES_H

#include <cuda_runtime_api.h>

/* What is wrong with a kernel; RIGHT: nothing. */
enum mistake {
    RIGHT,
    NO_BARRIER,      /* none between a write to shared memory and others' reads */
    LOOP_BARRIER,    /* one of a reduction's barriers missing */
    DIVERGENT,       /* halves of a block at different barriers */
    EARLY_END,       /* a thread ends before a barrier */
    PAST_SHARED,     /* writes behind a shared array */
    PAST_OUTPUT,     /* writes behind device memory */
    PAST_INPUT,      /* reads one value behind device memory */
    ABSENT_LANES,    /* a shuffle's mask names lanes that do not come */
    BLOCKS_ADD,      /* blocks add to a word without an atomic */
    LANES_TRADE,     /* lanes trade through shared memory without __syncwarp */
    MISALIGNED,      /* a load of 16 bytes from a multiple of 4 */
    UNSET,           /* a shared value that nobody writes */
    HOST_MEMORY,     /* reads memory that no device reaches */
    NO_COPY_WAIT,    /* reads before its asynchronous copy has landed */
    NO_COPY_BARRIER, /* waits for its own copies, not for those of others */
    NO_END_BARRIER,  /* the next copy overwrites what others still read */
    UNSET_COPY,      /* sums what its copy found unwritten */
    COPY_UNUSED,     /* no mistake: copies that too, and does not look at it */
    FRAGMENT,        /* a wrong lane of a tensor core's operand */
};

#define MISTAKE_THREADS 256u
#define MISTAKE_TILE 256u

/* out[block] = the sum of the block's 256 of n values; BLOCKS_ADD: out[0] = the sum of all */
cudaError_t mistake_sum(const float *x, unsigned n, unsigned blocks, float *out,
                        enum mistake mistake, cudaStream_t stream);
/* out[tile] = the sum of the tile's 256 values */
cudaError_t mistake_tiles(const float *x, unsigned tiles, float *out, enum mistake mistake,
                          cudaStream_t stream);
/* d = a * b; f16 a [16][16] by rows, b [8][16] (by columns), f32 d [16][8] */
cudaError_t mistake_product(const void *a, const void *b, float *d, enum mistake mistake,
                            cudaStream_t stream);
/* x = x * factor + offset */
cudaError_t mistake_scale(float *x, float factor, float offset, unsigned n, cudaStream_t stream);

#endif
