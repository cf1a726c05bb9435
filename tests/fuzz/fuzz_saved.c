/*
 * A file of a saved sequence, whose checksums are made to hold so that what lies behind them is
 * reached: it is opened, loaded into a session and run, or refused. The first byte chooses what is
 * mended, and which session it is: one with hot sets, or one without.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pivotkv/pivotkv.h"
#include "runtime/base/hash.h"
#include "runtime/session/saved_format.h"
#include "runtime/session/session.h"
#include "tests/support/pkv_test.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum {
    MEND_HEADER = 1,
    MEND_SIZE = 2,
    MEND_PARTS = 4,
    MEND_BLOCKS = 8,
    MEND_IDENTITY = 16,
    MEND_HOT = 32,
    HOT_SESSION = 64
};

static void check(bool right)
{
    if (!right) {
        abort();
    }
}

static struct pkv_session_config config_of(bool hot)
{
    struct pkv_session_config config = pkv_session_config_default();
    config.context_tokens = hot ? 640 : 128;
    config.step_rows = 8;
    if (hot) {
        config.sequences = 2;
        config.kv_policy = PKV_KV_HOT;
        config.policy = pkv_policy_find("pivot-norecall");
        config.kv_budget_bytes = 104 * 1024;
        config.kv_recent = 16;
    }
    return config;
}

static struct pkv_session *session(bool hot)
{
    static struct pkv_session *opened[2];
    static struct pkv_model *model;
    if (!model) {
        struct pkv_device_config device_config = pkv_device_config_default();
        struct pkv_model_config model_config = pkv_model_config_default();
        struct pkv_device *device = NULL;
        device_config.threads = 1;
        check(pkv_device_open("cpu", &device_config, &device) == PKV_OK);
        check(pkv_model_open(device, pkvt_path("golden/tiny/gemma3.gguf"), &model_config, &model) ==
              PKV_OK);
    }
    if (!opened[hot]) {
        const struct pkv_session_config config = config_of(hot);
        check(pkv_session_open(model, &config, &opened[hot]) == PKV_OK);
    }
    return opened[hot];
}

/* Checksum behind the part at *at, if all of it is there. */
static void mend_part(uint8_t *file, size_t bytes, uint64_t *at, uint64_t part_bytes)
{
    if (*at <= bytes && part_bytes <= bytes - *at && bytes - *at - part_bytes >= 8) {
        const uint64_t checksum = pkvi_hash(file + *at, part_bytes, 0);
        memcpy(file + *at + part_bytes, &checksum, sizeof checksum);
    }
    *at = *at <= bytes && part_bytes <= bytes ? *at + part_bytes + 8 : UINT64_MAX / 2;
}

/* Checksums of the hot set's words and bytes, which lie at `at`. */
static void mend_hot(uint8_t *file, size_t bytes, const struct pkvi_saved_header *header,
                     uint64_t at)
{
    uint64_t checksum = 0;
    mend_part(file, bytes, &at, header->hot_words * (uint64_t)sizeof(uint32_t));
    if (at > bytes || header->hot_bytes > bytes - at || bytes - at - header->hot_bytes < 8) {
        return;
    }
    for (uint64_t i = 0; i < header->hot_bytes; i += PKVI_SAVED_PIECE_BYTES) {
        const uint64_t left = header->hot_bytes - i;
        checksum = pkvi_hash(
            file + at + i, left < PKVI_SAVED_PIECE_BYTES ? left : PKVI_SAVED_PIECE_BYTES, checksum);
    }
    memcpy(file + at + header->hot_bytes, &checksum, sizeof checksum);
}

/* Checksums of the blocks of all layers that lie in the file; where they end, or 0. */
static uint64_t mend_blocks(uint8_t *file, size_t bytes, const struct pkvi_saved_header *header,
                            uint64_t at)
{
    for (uint32_t l = 0; l < header->layers; l++) {
        struct pkvi_saved_layer layer;
        memcpy(&layer, file + sizeof *header + l * sizeof layer, sizeof layer);
        const uint64_t block = pkvi_saved_block_bytes(header, &layer);
        const uint64_t count = layer.block_count;
        if (header->kv_type >= PKV_KV_TYPE_COUNT || block > bytes || count > bytes || at > bytes ||
            count * (block + 8) > bytes - at) {
            return 0;
        }
        for (uint32_t b = 0; b < count; b++) {
            const uint64_t checksum = pkvi_saved_checksum(file + at + b * block, block, l, b);
            memcpy(file + at + count * block + b * 8ull, &checksum, sizeof checksum);
        }
        at += count * (block + 8);
    }
    return at;
}

static void mend(uint8_t *file, size_t bytes, uint8_t what)
{
    struct pkvi_saved_header header;
    if (bytes < sizeof header) {
        return;
    }
    memcpy(&header, file, sizeof header);
    if (what & MEND_SIZE) {
        header.file_bytes = bytes;
    }
    if (what & MEND_IDENTITY) {
        header.identity = session(false)->model->identity;
    }
    if (what & MEND_HEADER) {
        header.checksum = pkvi_hash(&header, offsetof(struct pkvi_saved_header, checksum), 0);
    }
    memcpy(file, &header, sizeof header);
    uint64_t at = sizeof header;
    if (what & MEND_PARTS) {
        const uint64_t table_bytes = header.layers * (uint64_t)sizeof(struct pkvi_saved_layer);
        const bool whole = table_bytes <= bytes - sizeof header;
        mend_part(file, bytes, &at, table_bytes);
        mend_part(file, bytes, &at, header.id_count * (uint64_t)sizeof(int32_t));
        mend_part(file, bytes, &at, header.note_bytes);
        if (whole && (what & MEND_BLOCKS)) {
            at = mend_blocks(file, bytes, &header, at);
            if (at > 0 && (what & MEND_HOT)) {
                mend_hot(file, bytes, &header, at);
            }
        }
    }
}

static void use(struct pkv_saved *saved, bool hot)
{
    struct pkv_session *s = session(hot);
    const uint32_t room = hot ? 640 : 128;
    struct pkv_saved_info info;
    struct pkv_seq *seq = NULL;
    pkv_saved_query(saved, &info);
    check(info.tokens > 0 && info.id_count >= info.tokens);
    check(info.note[info.note_bytes] == '\0');
    if (pkv_seq_load(s, saved, &seq) != PKV_OK) {
        check(seq == NULL);
        return;
    }
    check(pkv_seq_tokens(seq) == info.tokens && info.tokens <= room);
    const float *logits = NULL;
    struct pkv_step_part part = {.seq = seq, .ids = info.ids, .count = 1, .logit_rows = 1};
    check((pkv_step_run(s, &part, 1, &logits) == PKV_OK) == (info.tokens < room));
    pkv_seq_close(seq);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    struct pkv_saved *saved = NULL;
    if (bytes == 0) {
        return 0;
    }
    uint8_t *file = malloc(bytes);
    const int memory = memfd_create("saved", MFD_CLOEXEC);
    check(file && memory >= 0);
    memcpy(file, data + 1, bytes - 1);
    mend(file, bytes - 1, data[0]);
    check(write(memory, file, bytes - 1) == (ssize_t)(bytes - 1));
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    if (pkv_saved_open(path, &saved) == PKV_OK) {
        use(saved, data[0] & HOT_SESSION);
    }
    pkv_saved_close(saved);
    close(memory);
    free(file);
    return 0;
}
