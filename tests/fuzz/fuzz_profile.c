/* fuzz_profile.c: any bytes as a profile: refused in one line, or read and then the same again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

static void check_curve(const struct pkvi_profile_curve *curve)
{
    check(curve->count >= 1 && curve->count <= PKVI_PROFILE_POINTS);
    for (uint32_t i = 0; i < curve->count; i++) {
        check(curve->point[i].gbps > 0 && curve->point[i].gbps <= 1e6);
        check(curve->point[i].piece_bytes > (i > 0 ? curve->point[i - 1].piece_bytes : 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct pkvi_profile first, second;
    char *text = NULL;
    memset(&first, 0, sizeof first);
    memset(&second, 0, sizeof second);
    enum pkv_status status = pkvi_profile_parse((const char *)data, bytes, "FILE", &first);
    if (status != PKV_OK) {
        check(status == PKV_ERR_CORRUPT || status == PKV_ERR_UNSUPPORTED);
        check(strchr(pkv_error_text(), '\n') == NULL);
        return 0;
    }
    check(first.read_gbps > 0 && first.int8_gops > 0 && first.f32_gops > 0 && first.threads > 0);
    for (uint32_t d = 0; d < PKVI_PROFILE_DIRECTIONS; d++) {
        check_curve(&first.link[d].contiguous);
        check_curve(&first.link[d].gather);
    }
    check(pkvi_profile_format(&first, &text) == PKV_OK);
    check(pkvi_profile_parse(text, strlen(text), "FILE", &second) == PKV_OK);
    check(first.has_kernels == second.has_kernels);
    for (uint32_t kind = 0; first.has_kernels && kind < PKVI_PROFILE_KINDS; kind++) {
        check(first.kernel[kind].count >= 1);
        check(first.kernel[kind].count == second.kernel[kind].count);
    }
    check(first.threads == second.threads && first.cached == second.cached);
    check(strcmp(first.machine, second.machine) == 0);
    free(text);
    return 0;
}
