/* fuzz_gguf.c: any bytes as a model file: opened, every value read, the architecture checked. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pivotkv/status.h"
#include "runtime/model/arch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What is read must stay alive to be read. */
static volatile unsigned sum;

static void read_keys(const struct pkvi_gguf *gguf)
{
    for (uint64_t i = 0; i < pkvi_gguf_key_count(gguf); i++) {
        const struct pkvi_gguf_key *key = pkvi_gguf_key_at(gguf, i);
        for (uint64_t j = 0; j < key->value_bytes; j++) {
            sum += key->value[j];
        }
        for (uint64_t j = 0; key->is_array && j < key->count; j++) {
            struct pkvi_str str = {NULL, 0};
            int32_t integer;
            float real;
            if (pkvi_gguf_array_str(gguf, key, j, &str) == PKV_OK && str.bytes > 0) {
                sum += (unsigned)str.data[0] + (unsigned)str.data[str.bytes - 1];
            }
            (void)pkvi_gguf_array_i32(key, j, &integer);
            (void)pkvi_gguf_array_f32(key, j, &real);
        }
    }
}

static void read_tensors(const struct pkvi_gguf *gguf)
{
    for (uint64_t i = 0; i < pkvi_gguf_tensor_count(gguf); i++) {
        const struct pkvi_gguf_tensor *tensor = pkvi_gguf_tensor_at(gguf, i);
        uint8_t ends[2] = {0};
        if (tensor->offset &&
            (pkvi_gguf_read(gguf, tensor, 0, 1, ends) != PKV_OK ||
             pkvi_gguf_read(gguf, tensor, tensor->bytes - 1, 1, ends + 1) != PKV_OK)) {
            abort(); // the file does not change: what was checked must be readable
        }
        sum += ends[0] + (unsigned)ends[1];
    }
}

static void read_weight(const struct pkvi_gguf *gguf, const struct pkvi_weight *weight)
{
    uint64_t row_bytes = weight->tensor->bytes / weight->tensor->dim[1];
    uint64_t end = (weight->first_row + (uint64_t)weight->rows) * row_bytes;
    uint8_t last = 0;
    if (pkvi_gguf_read(gguf, weight->tensor, end - 1, 1, &last) != PKV_OK ||
        (weight->bias &&
         pkvi_gguf_read(gguf, weight->bias, 4 * ((uint64_t)weight->first_row + weight->rows) - 1, 1,
                        &last) != PKV_OK)) {
        abort();
    }
    sum += last;
}

static void read_arch(const struct pkvi_gguf *gguf)
{
    struct pkvi_arch arch;
    if (pkvi_arch_read(gguf, &arch) != PKV_OK) {
        return;
    }
    for (uint32_t i = 0; i < arch.layer_count; i++) {
        const struct pkvi_arch_layer *layer = &arch.layer[i];
        read_weight(gguf, &layer->q);
        read_weight(gguf, &layer->k);
        read_weight(gguf, &layer->v);
        read_weight(gguf, &layer->out);
        read_weight(gguf, &layer->gate);
        read_weight(gguf, &layer->up);
        read_weight(gguf, &layer->down);
        sum += arch.rope[layer->rope].freq[layer->info.rope_pairs - 1] > 1;
    }
    read_weight(gguf, &arch.output);
    pkvi_arch_free(&arch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, bytes, 0) != (ssize_t)bytes) {
        abort();
    }
    struct pkvi_gguf *gguf = NULL;
    if (pkvi_gguf_open(path, &gguf) == PKV_OK) {
        read_keys(gguf);
        read_tensors(gguf);
        read_arch(gguf);
        pkvi_gguf_close(gguf);
    } else if (strchr(pkv_error_text(), '\n')) {
        abort();
    }
    return 0;
}
