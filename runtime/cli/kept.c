/* kept.c: owns --kv-save and --kv-load. The file's form is the library's. */
#include "runtime/cli/kept.h"

static const struct pkvi_option options[] = {
    {"kv-save", 0, PKV_OPTION_TEXT, offsetof(struct pkvi_kept, save), "FILE",
     "at the end, keep all tokens with their K and V in FILE", 0, 0, false},
    {"kv-load", 0, PKV_OPTION_TEXT, offsetof(struct pkvi_kept, load), "FILE",
     "go on from what --kv-save kept in FILE, of the same model and --kv-cache-dtype", 0, 0, false},
};

struct pkvi_option_set pkvi_kept_options(struct pkvi_kept *kept)
{
    return (struct pkvi_option_set)PKV_OPTION_SET(options, kept);
}

bool pkvi_kept_open(struct pkvi_kept *kept)
{
    if ((kept->load != NULL && pkv_saved_open(kept->load, &kept->saved) != PKV_OK) ||
        (kept->save != NULL && pkv_saved_probe(kept->save) != PKV_OK)) {
        pkvi_say_library_failure();
        return false;
    }
    if (kept->saved != NULL) {
        pkv_saved_query(kept->saved, &kept->info);
    }
    return true;
}

bool pkvi_kept_seq(struct pkvi_kept *kept, struct pkvi_engine *engine, struct pkv_seq **seq_out)
{
    const uint64_t begin_ns = pkvi_now_ns();
    const enum pkv_status status = kept->saved != NULL
                                       ? pkv_seq_load(engine->session, kept->saved, seq_out)
                                       : pkv_seq_open(engine->session, seq_out);
    if (status != PKV_OK) {
        pkvi_say_library_failure();
        return false;
    }
    if (kept->saved != NULL) {
        const uint64_t ns = pkvi_now_ns() - begin_ns;
        pkvi_say_note("kept     %u tokens loaded, %s, %.2f GB/s", kept->info.tokens,
                      pkvi_size_text(kept->info.file_bytes).text,
                      ns > 0 ? (double)kept->info.file_bytes / (double)ns : 0.0);
    }
    return true;
}

bool pkvi_kept_save(const struct pkvi_kept *kept, struct pkv_seq *seq, const int32_t *ids,
                    size_t count, const struct pkvi_bytes *note)
{
    struct pkv_saved_info info = {.ids = ids, .id_count = (uint32_t)count};
    if (kept->save == NULL) {
        return true;
    }
    if (pkv_seq_tokens(seq) == 0) {
        pkvi_say_note("kept     nothing: no token was read");
        return true;
    }
    if (note != NULL) {
        info.note = note->data;
        info.note_bytes = note->bytes;
    }
    if (pkv_seq_save(seq, kept->save, &info) != PKV_OK) {
        pkvi_say_library_failure();
        return false;
    }
    pkvi_say_note("kept     %u tokens in %s", pkv_seq_tokens(seq), kept->save);
    return true;
}

void pkvi_kept_close(struct pkvi_kept *kept)
{
    pkv_saved_close(kept->saved);
    kept->saved = NULL;
}
