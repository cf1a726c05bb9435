/* card.c: see card.h. */
#include "tests/gpu/card.h"

#include "kernels/cuda/cuda.h"
#include "runtime/base/check.h"
#include "tests/support/device_suite.h"

static const struct pkvi_cuda_stream *native(void *native_stream)
{
    return native_stream;
}

static enum pkv_status launch_gather(void *stream, const void *args)
{
    return pkvi_cuda_check(pkvt_launch_gather(native(stream)->stream, args), "launch of gather");
}

static enum pkv_status launch_read(void *stream, const void *args)
{
    const uint32_t blocks = 4 * native(stream)->multiprocessors;
    return pkvi_cuda_check(pkvt_launch_read(native(stream)->stream, args, blocks),
                           "launch of read");
}

static enum pkv_status launch_delay(void *stream, const void *args)
{
    const struct pkvt_delay *delay = args;
    return pkvi_cuda_check(pkvt_launch_delay(native(stream)->stream, delay->us), "launch of delay");
}

static enum pkv_status launch_step(void *stream, const void *args)
{
    const struct pkvt_step *step = args;
    if (step->fail) {
        return PKV_FAIL(PKV_ERR_CORRUPT, "step refused");
    }
    return pkvi_cuda_check(
        pkvt_launch_step(native(stream)->stream, step->x, step->value, step->delay_us),
        "launch of step");
}

const struct pkv_kernel pkvt_card_gather = {
    .variant = "test", .args_bytes = sizeof(struct pkvt_gather), .launch = launch_gather};
const struct pkv_kernel pkvt_card_read = {
    .variant = "test", .args_bytes = sizeof(struct pkvt_read), .launch = launch_read};
const struct pkv_kernel pkvt_card_delay = {
    .variant = "test", .args_bytes = sizeof(struct pkvt_delay), .launch = launch_delay};
const struct pkv_kernel pkvt_card_step = {
    .variant = "test", .args_bytes = sizeof(struct pkvt_step), .launch = launch_step};
