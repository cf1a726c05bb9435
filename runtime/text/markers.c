/*
 * markers.c: tokens that are found in raw text before it is cut: control tokens such as
 * "<|im_start|>" where they are asked for, and user-defined ones always.
 *
 * The order is llama.cpp's: the longest marker is taken first wherever it stands. One pass finds
 * the longest marker at each position; a heap then takes them by (length, id, position). A
 * position whose marker does not fit any more falls back to the next shorter marker there. So the
 * cost is linear in the text but for the logarithm of the number of markers found.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/text.h"

struct entry {
    const char *text;
    uint32_t bytes;
    int32_t id;
    uint32_t order;  /* place in descending length, then ascending id */
    int32_t shorter; /* the longest other marker that begins this one, -1 = none */
};

struct pkvi_markers {
    uint32_t count;
    struct entry *entry;     /* sorted by text */
    uint32_t *by_order;      /* order -> index of entry */
    uint32_t first[256 + 1]; /* entries that begin with a byte: first[b] .. first[b + 1] - 1 */
};

static int compare_text(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    size_t common = a->bytes < b->bytes ? a->bytes : b->bytes;
    int difference = memcmp(a->text, b->text, common);
    return difference ? difference : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_order(const void *left, const void *right)
{
    const struct entry *a = *(const struct entry *const *)left;
    const struct entry *b = *(const struct entry *const *)right;
    if (a->bytes != b->bytes) {
        return a->bytes > b->bytes ? -1 : 1;
    }
    return (a->id > b->id) - (a->id < b->id);
}

/* Sorted by text, a marker that begins another one stands before it, and so do those between. */
static void link_shorter(struct pkvi_markers *markers)
{
    for (uint32_t i = 0; i < markers->count; i++) {
        struct entry *entry = &markers->entry[i];
        int32_t shorter = (int32_t)i - 1;
        while (shorter >= 0) {
            const struct entry *other = &markers->entry[shorter];
            if (other->bytes < entry->bytes &&
                memcmp(other->text, entry->text, other->bytes) == 0) {
                break;
            }
            shorter = other->shorter;
        }
        entry->shorter = shorter;
    }
}

static enum pkv_status set_order(struct pkvi_markers *markers)
{
    const struct entry **sorted = malloc(markers->count * sizeof(const struct entry *));
    if (!sorted) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: %u markers", markers->count);
    }
    for (uint32_t i = 0; i < markers->count; i++) {
        sorted[i] = &markers->entry[i];
    }
    qsort(sorted, markers->count, sizeof *sorted, compare_order);
    for (uint32_t order = 0; order < markers->count; order++) {
        uint32_t index = (uint32_t)(sorted[order] - markers->entry);
        markers->entry[index].order = order;
        markers->by_order[order] = index;
    }
    free(sorted);
    return PKV_OK;
}

static bool is_marker(const struct pkvi_vocab *vocab, uint32_t id, bool control)
{
    return vocab->piece[id].text_bytes > 0 &&
           (vocab->kind[id] == PKVI_TOKEN_USER ||
            (control && pkvi_vocab_is_control(vocab, (int32_t)id)));
}

enum pkv_status pkvi_markers_open(const struct pkvi_vocab *vocab, bool control,
                                  struct pkvi_markers **markers_out)
{
    struct pkvi_markers *markers = calloc(1, sizeof *markers);
    if (!markers) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: table of markers");
    }
    uint32_t count = 0;
    for (uint32_t id = 0; id < vocab->count; id++) {
        count += is_marker(vocab, id, control);
    }
    markers->entry = malloc((count + 1) * sizeof *markers->entry);
    markers->by_order = malloc((count + 1) * sizeof *markers->by_order);
    if (!markers->entry || !markers->by_order) {
        pkvi_markers_close(markers);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: %u markers", count);
    }
    for (uint32_t id = 0; id < vocab->count; id++) {
        if (is_marker(vocab, id, control)) {
            const struct pkvi_piece *piece = &vocab->piece[id];
            markers->entry[markers->count++] =
                (struct entry){vocab->blob + piece->text_at, piece->text_bytes, (int32_t)id, 0, -1};
        }
    }
    qsort(markers->entry, count, sizeof *markers->entry, compare_text);
    for (uint32_t byte = 0, i = 0; byte <= 256; byte++) {
        while (i < count && (unsigned char)markers->entry[i].text[0] < byte) {
            i++;
        }
        markers->first[byte] = i;
    }
    link_shorter(markers);
    enum pkv_status status = count ? set_order(markers) : PKV_OK;
    if (status != PKV_OK) {
        pkvi_markers_close(markers);
        return status;
    }
    *markers_out = markers;
    return PKV_OK;
}

void pkvi_markers_close(struct pkvi_markers *markers)
{
    if (markers) {
        free(markers->entry);
        free(markers->by_order);
        free(markers);
    }
}

/* First entry of [low, high) whose byte at `depth` is at least c; all of them are longer. */
static uint32_t lower_bound(const struct pkvi_markers *markers, uint32_t low, uint32_t high,
                            uint32_t depth, unsigned char c)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((unsigned char)markers->entry[middle].text[depth] < c) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest marker at the start of text; -1 if there is none. */
static int32_t longest(const struct pkvi_markers *markers, const char *text, size_t bytes)
{
    unsigned char c = (unsigned char)text[0];
    uint32_t low = markers->first[c], high = markers->first[c + 1];
    int32_t found = -1;
    for (uint32_t depth = 1; low < high; depth++) {
        if (markers->entry[low].bytes == depth) { // the shortest of the range stands first
            found = (int32_t)low++;
        }
        if (depth >= bytes || low == high) {
            break;
        }
        c = (unsigned char)text[depth];
        low = lower_bound(markers, low, high, depth, c);
        high = c == 0xff ? high : lower_bound(markers, low, high, depth, (unsigned char)(c + 1));
    }
    return found;
}

/* Found markers wait as order << 32 | position, so that the least number goes first. */
struct queue {
    uint64_t *entry;
    size_t count, capacity;
};

static enum pkv_status queue_add(struct queue *queue, uint64_t entry)
{
    if (queue->count == queue->capacity) {
        size_t capacity = queue->capacity ? queue->capacity * 2 : 64;
        uint64_t *grown = realloc(queue->entry, capacity * sizeof *grown);
        if (!grown) {
            return PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: %zu markers in a text", queue->count);
        }
        queue->entry = grown;
        queue->capacity = capacity;
    }
    queue->entry[queue->count++] = entry;
    return PKV_OK;
}

static void sift_down(struct queue *queue, size_t at)
{
    uint64_t *heap = queue->entry, moved = heap[at];
    for (size_t child; (child = 2 * at + 1) < queue->count; at = child) {
        if (child + 1 < queue->count && heap[child + 1] < heap[child]) {
            child++;
        }
        if (heap[child] >= moved) {
            break;
        }
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static bool is_taken(const uint8_t *taken, size_t at)
{
    return taken[at / 8] >> (at % 8) & 1;
}

/*
 * Take what fits. All that was taken before is at least as long as what comes now, so what
 * overlaps it covers one of its two ends.
 */
static void take_best(const struct pkvi_markers *markers, struct queue *queue, uint8_t *taken,
                      struct pkvi_marker *marker, size_t *count_out)
{
    *count_out = 0;
    for (size_t i = queue->count / 2; i-- > 0;) {
        sift_down(queue, i);
    }
    while (queue->count > 0) {
        uint64_t top = queue->entry[0];
        size_t at = (uint32_t)top;
        const struct entry *entry = &markers->entry[markers->by_order[top >> 32]];
        bool starts_free = !is_taken(taken, at);
        bool fits = starts_free && !is_taken(taken, at + entry->bytes - 1);
        if (fits) {
            for (size_t i = at; i < at + entry->bytes; i++) {
                taken[i / 8] |= (uint8_t)(1u << (i % 8));
            }
            marker[(*count_out)++] = (struct pkvi_marker){at, entry->id};
        }
        if (starts_free && !fits && entry->shorter >= 0) {
            const struct entry *shorter = &markers->entry[entry->shorter];
            queue->entry[0] = (uint64_t)shorter->order << 32 | at;
        } else {
            queue->entry[0] = queue->entry[--queue->count];
        }
        if (queue->count > 0) {
            sift_down(queue, 0);
        }
    }
}

static int compare_position(const void *left, const void *right)
{
    const struct pkvi_marker *a = left, *b = right;
    return (a->at > b->at) - (a->at < b->at);
}

enum pkv_status pkvi_markers_find(const struct pkvi_markers *markers, const char *text,
                                  size_t bytes, struct pkvi_marker **found_out, size_t *count_out)
{
    struct queue queue = {0};
    enum pkv_status status = PKV_OK;
    *found_out = NULL;
    *count_out = 0;
    for (size_t at = 0; at < bytes && markers->count > 0 && status == PKV_OK; at++) {
        int32_t index = longest(markers, text + at, bytes - at);
        if (index >= 0) {
            status = queue_add(&queue, (uint64_t)markers->entry[index].order << 32 | at);
        }
    }
    if (status == PKV_OK && queue.count > 0) {
        uint8_t *taken = calloc(bytes / 8 + 1, 1);
        struct pkvi_marker *marker = malloc(queue.count * sizeof *marker);
        if (!taken || !marker) {
            status = PKV_FAIL(PKV_ERR_NO_MEMORY, "tokenizer: %zu markers in a text", queue.count);
            free(marker);
        } else {
            take_best(markers, &queue, taken, marker, count_out);
            qsort(marker, *count_out, sizeof *marker, compare_position);
            *found_out = marker;
        }
        free(taken);
    }
    free(queue.entry);
    return status;
}
