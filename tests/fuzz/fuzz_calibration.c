/*
 * A file of a calibration, whose checksum is made to hold so that what lies behind it is reached:
 * it is loaded and used, or refused. The first byte chooses what is mended.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/session/calibration.h"
#include "tests/support/pkv_test.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MEND_CHECKSUM = 1, MEND_SIZE = 2, MEND_IDENTITY = 4 };

static void check(bool right)
{
    if (!right) {
        abort();
    }
}

/* One layer. */
static struct pkv_model *model(void)
{
    static struct pkv_model *opened;
    if (!opened) {
        const struct pkv_model_config config = pkv_model_config_default();
        struct pkv_device_config device_config = pkv_device_config_default();
        struct pkv_device *device = NULL;
        device_config.threads = 1;
        check(pkv_device_open("cpu", &device_config, &device) == PKV_OK);
        check(pkv_model_open(device, pkvt_path("golden/malformed/ok.gguf"), &config, &opened) ==
              PKV_OK);
    }
    return opened;
}

static void mend(char *file, size_t bytes, uint8_t what)
{
    struct pkvi_calibration_header header;
    struct pkv_model_info info;
    if (bytes < sizeof header + sizeof(uint64_t)) {
        return;
    }
    memcpy(&header, file, sizeof header);
    pkv_model_query(model(), &info);
    header.file_bytes = what & MEND_SIZE ? bytes : header.file_bytes;
    header.identity = what & MEND_IDENTITY ? info.identity : header.identity;
    memcpy(file, &header, sizeof header);
    if (what & MEND_CHECKSUM) {
        const uint64_t checksum = pkvi_calibration_checksum(file, bytes);
        memcpy(file + bytes - sizeof checksum, &checksum, sizeof checksum);
    }
}

static void use(const struct pkv_calibration *calibration, size_t bytes)
{
    struct pkv_calibration_info info;
    uint16_t channels[1024];
    float mean[4096], sd[4096];
    double freq[1024];
    pkv_calibration_query(calibration, &info);
    check(info.file_bytes == bytes && info.layers == 1 && info.cosine[0] <= 1.0f);
    const struct pkv_layer_info *layer = pkv_model_layer(model(), 0);
    check((size_t)layer->kv_heads * layer->head_dim <= 4096);
    for (uint32_t i = 0; i < layer->rope_pairs; i++) {
        freq[i] = 1.0 / (1.0 + i);
    }
    pkvi_calibration_keys(calibration, layer, 0, freq, 1.0, 100, mean, sd);
    for (uint32_t h = 0; h < layer->kv_heads; h++) {
        for (uint32_t r = 0; r <= layer->head_dim && r <= 1024; r += 2) {
            pkvi_calibration_channels(calibration, layer, 0, h, sd, r, channels);
            for (uint32_t i = 0; i < r; i++) {
                check(channels[i] < layer->head_dim);
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    struct pkv_calibration *calibration = NULL;
    if (bytes == 0) {
        return 0;
    }
    char *file = malloc(bytes);
    const int memory = memfd_create("calibration", MFD_CLOEXEC);
    check(file && memory >= 0);
    memcpy(file, data + 1, bytes - 1);
    mend(file, bytes - 1, data[0]);
    check(write(memory, file, bytes - 1) == (ssize_t)(bytes - 1));
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    if (pkv_calibration_load(model(), path, &calibration) == PKV_OK) {
        use(calibration, bytes - 1);
    } else {
        check(calibration == NULL);
    }
    pkv_calibration_close(calibration);
    close(memory);
    free(file);
    return 0;
}
