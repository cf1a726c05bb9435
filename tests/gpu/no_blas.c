/* no_blas.c: streams without cuBLAS, whose start takes longer than a test of edges. Linked with
 * -Wl,--wrap=pkvi_cuda_blas_open. */
#include "runtime/device/dev_cuda.h"

void __wrap_pkvi_cuda_blas_open(struct cuda_stream *stream);

void __wrap_pkvi_cuda_blas_open(struct cuda_stream *stream)
{
    (void)stream;
}
