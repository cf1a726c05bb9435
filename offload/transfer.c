/*
 * transfer.c: the only file that enqueues writes of K and V: append, copies between host blocks,
 * pages, buffer and staging, on the streams COMPUTE, LOAD and STORE.
 *
 * The edges between streams, each with the event that holds it:
 *   append > store     `appended`, recorded on COMPUTE, awaited by STORE: a block is copied out
 *                      only after its last entry was written
 *   store > publish    `stored`, recorded on STORE; the host asks for it before it shows a block to
 *                      loads (and before it hands the block's pages to somebody else)
 *   store > buffer     `tile_stored[tile]`, recorded on STORE, awaited by COMPUTE: the next layer
 *                      appends to the buffer only what has been copied out of it; the next pass,
 *                      whose rows may lie elsewhere, waits for `stored`
 *   load > attend      `loaded[slot]`, recorded on LOAD, awaited by COMPUTE
 *   attend > load      `attended[slot]`, recorded on COMPUTE, awaited by LOAD: a staging slot is
 *                      overwritten only after it was read
 *   unpark > attend    `unparked`, recorded on LOAD, awaited by COMPUTE before anything touches the
 *                      sequence again: its pages and rings have come back
 *   unpark > park      `unparked`, awaited by STORE: rings that are parked next may lie where those
 *                      of the last unparked sequence are still being read
 *   query > recall     `queried`, recorded on COMPUTE, awaited by RECALL: index, query and tables
 * of a layer are there; and what attended to its slots in the last step has (attend > recall, which
 * has no event of its own) recall > attend    `arrived[layer % 2]`, recorded on RECALL, awaited by
 * COMPUTE upload > refill    the pass's own end: the session begins a pass after the last one has
 * ended
 *
 * Pages that change hands are written by COMPUTE (appends, copies from the buffer), so its own
 * order holds what was read from them before; LOAD, which fills those of an unparked sequence,
 * first waits for COMPUTE (`appended`). A cut may leave pages that STORE still copies out: COMPUTE
 * then waits for `stored` before the next pass or unpark (store > buffer). Nobody owns the block
 * that such a copy goes to, so only a race detector sees this wait missing.
 */
#include "offload/tier_impl.h"

static bool kept(const struct pkvi_tier *t, enum pkvi_edge edge)
{
    return (t->config.dropped_edges & 1u << edge) == 0;
}

static enum pkv_status await(struct pkvi_tier *t, enum pkvi_edge edge, struct pkv_stream *stream,
                             struct pkv_event *event)
{
    return kept(t, edge) ? pkvi_event_wait(stream, event) : PKV_OK;
}

enum pkv_status pkvi_copies_flush(struct pkvi_copies *copies)
{
    if (copies->count == 0) {
        return PKV_OK;
    }
    const uint32_t count = copies->count;
    copies->count = 0;
    copies->bytes = 0;
    return pkvi_copy_async(copies->stream, copies->tier->spans, count);
}

static enum pkv_status add_span(struct pkvi_copies *copies, pkv_addr dst, pkv_addr src,
                                uint64_t bytes)
{
    struct pkv_span *spans = copies->tier->spans;
    if (copies->count > 0) { /* neighbours go together */
        struct pkv_span *last = &spans[copies->count - 1];
        if (last->dst + last->bytes == dst && last->src + last->bytes == src &&
            last->bytes + bytes <= PKVI_TIER_COPY_BYTES) {
            last->bytes += bytes;
            copies->bytes += bytes;
            return PKV_OK;
        }
    }
    if (copies->count == PKVI_TIER_SPANS || copies->bytes + bytes > PKVI_TIER_COPY_BYTES) {
        PKV_TRY(pkvi_copies_flush(copies));
    }
    spans[copies->count++] = (struct pkv_span){.dst = dst, .src = src, .bytes = bytes};
    copies->bytes += bytes;
    return PKV_OK;
}

enum pkv_status pkvi_copies_add(struct pkvi_copies *copies, pkv_addr dst, pkv_addr src,
                                uint64_t bytes)
{
    while (bytes > PKVI_TIER_COPY_BYTES) {
        PKV_TRY(add_span(copies, dst, src, PKVI_TIER_COPY_BYTES));
        dst += PKVI_TIER_COPY_BYTES;
        src += PKVI_TIER_COPY_BYTES;
        bytes -= PKVI_TIER_COPY_BYTES;
    }
    return add_span(copies, dst, src, bytes);
}

static enum pkv_status open_recall(struct pkvi_tier *t)
{
    if (!t->recalls || t->config.recall_inline) {
        return PKV_OK;
    }
    PKV_TRY(pkvi_stream_open(t->device, PKV_RECALL, NULL, &t->recall));
    PKV_TRY(pkvi_event_open(t->device, false, &t->queried));
    PKV_TRY(pkvi_event_open(t->device, false, &t->arrived[0]));
    return pkvi_event_open(t->device, false, &t->arrived[1]);
}

enum pkv_status pkvi_transfer_open(struct pkvi_tier *t)
{
    struct pkv_device *device = t->device;
    PKV_TRY(pkvi_stream_open(device, PKV_STORE, NULL, &t->store));
    PKV_TRY(pkvi_stream_open(device, PKV_LOAD, NULL, &t->load));
    PKV_TRY(open_recall(t));
    PKV_TRY(pkvi_event_open(device, false, &t->appended));
    PKV_TRY(pkvi_event_open(device, false, &t->stored));
    PKV_TRY(pkvi_event_open(device, false, &t->unparked));
    for (uint32_t s = 0; s < PKVI_TIER_SLOTS; s++) {
        PKV_TRY(pkvi_event_open(device, false, &t->loaded[s]));
        PKV_TRY(pkvi_event_open(device, false, &t->attended[s]));
    }
    for (uint32_t i = 0; i < t->row_tiles; i++) {
        PKV_TRY(pkvi_event_open(device, false, &t->tile_stored[i]));
    }
    for (uint32_t i = 0; t->sizes.tile_tokens > 0 && i < PKVI_TIER_METERS; i++) {
        struct pkvi_tier_meter *meter = &t->meter[i];
        PKV_TRY(pkvi_event_open(device, true, &meter->load_begin));
        PKV_TRY(pkvi_event_open(device, true, &meter->load_end));
        PKV_TRY(pkvi_event_open(device, true, &meter->wait_begin));
        PKV_TRY(pkvi_event_open(device, true, &meter->wait_end));
    }
    return PKV_OK;
}

void pkvi_transfer_close(struct pkvi_tier *t)
{
    pkvi_stream_close(t->load); /* they wait for what they hold */
    pkvi_stream_close(t->store);
    pkvi_stream_close(t->recall);
    pkvi_event_close(t->arrived[1]);
    pkvi_event_close(t->arrived[0]);
    pkvi_event_close(t->queried);
    for (uint32_t i = 0; i < PKVI_TIER_METERS; i++) {
        pkvi_event_close(t->meter[i].wait_end);
        pkvi_event_close(t->meter[i].wait_begin);
        pkvi_event_close(t->meter[i].load_end);
        pkvi_event_close(t->meter[i].load_begin);
    }
    for (uint32_t i = 0; t->tile_stored && i < t->row_tiles; i++) {
        pkvi_event_close(t->tile_stored[i]);
    }
    for (uint32_t s = 0; s < PKVI_TIER_SLOTS; s++) {
        pkvi_event_close(t->attended[s]);
        pkvi_event_close(t->loaded[s]);
    }
    pkvi_event_close(t->unparked);
    pkvi_event_close(t->stored);
    pkvi_event_close(t->appended);
}

/* The page that a buffered layer goes on with, into the buffer. */
static enum pkv_status copy_open_pages(struct pkvi_tier *t, uint32_t layer)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    const struct pkvi_tier_layer *l = &t->layer[layer];
    for (uint32_t p = 0; p < t->part_count; p++) {
        const struct pkvi_tier_part *part = &t->part[p];
        const struct pkvi_tier_state *state = &t->seq[part->seq].state[layer];
        if (!state->buffered || state->open_page[0] == 0) {
            continue;
        }
        const pkv_addr *row = pkvi_tier_row(t, part->seq, part->tokens / PKV_PAGE_TOKENS);
        for (uint32_t h = 0; h < l->info.kv_heads; h++) {
            PKV_TRY(pkvi_copies_add(&copies, row[l->head_base + h], state->open_page[h],
                                    l->page_bytes));
        }
    }
    return pkvi_copies_flush(&copies);
}

enum pkv_status pkvi_transfer_before_reuse(struct pkvi_tier *t)
{
    if (!t->left_unstored) {
        return PKV_OK;
    }
    t->left_unstored = false;
    return await(t, PKVI_EDGE_STORE_BUFFER, t->compute, t->stored);
}

enum pkv_status pkvi_transfer_append(struct pkvi_tier *t, const struct pkvi_tier_rows *rows)
{
    bool buffered = false;
    for (uint32_t p = 0; t->layer[rows->layer].global && p < t->part_count; p++) {
        buffered = buffered || t->seq[t->part[p].seq].state[rows->layer].buffered;
    }
    if (buffered) { /* events that were never recorded pass at once */
        /* The next tile's store also takes the page that this tile ends in the middle of. */
        const uint32_t last = t->row_tiles - 1, next = rows->row_tile + 1;
        if (rows->row_tile == 0) { /* rows of several sequences lie where other tiles did before */
            PKV_TRY(await(t, PKVI_EDGE_STORE_BUFFER, t->compute, t->stored));
        }
        PKV_TRY(await(t, PKVI_EDGE_STORE_BUFFER, t->compute, t->tile_stored[rows->row_tile]));
        PKV_TRY(await(t, PKVI_EDGE_STORE_BUFFER, t->compute,
                      t->tile_stored[next < last ? next : last]));
    }
    if (buffered && rows->row_tile == 0) {
        PKV_TRY(copy_open_pages(t, rows->layer));
    }
    return pkvi_launch(t->compute, t->append_kernel, &rows->append);
}

enum pkv_status pkvi_transfer_place(struct pkvi_tier *t, const struct pkv_args_place *args)
{
    return pkvi_launch(t->compute, t->place_kernel, args);
}

enum pkv_status pkvi_transfer_compete(struct pkvi_tier *t, const struct pkv_args_compete *args)
{
    return pkvi_launch(t->compute, t->compete_kernel, args);
}

/* The stream that recalls: COMPUTE where it has none of its own. */
static struct pkv_stream *recall_stream(const struct pkvi_tier *t)
{
    return t->recall ? t->recall : t->compute;
}

enum pkv_status pkvi_transfer_predict(struct pkvi_tier *t, const struct pkv_args_predict *args)
{
    if (t->recall) {
        PKV_TRY(pkvi_event_record(t->queried, t->compute));
        PKV_TRY(await(t, PKVI_EDGE_QUERY_RECALL, t->recall, t->queried));
    }
    return args ? pkvi_launch(recall_stream(t), t->predict_kernel, args) : PKV_OK;
}

enum pkv_status pkvi_transfer_recall(struct pkvi_tier *t, uint32_t layer,
                                     const struct pkv_args_recall *args)
{
    PKV_TRY(pkvi_launch(recall_stream(t), t->recall_kernel, args));
    if (!t->recall) {
        return PKV_OK;
    }
    t->recalling[layer % 2] = true;
    return pkvi_event_record(t->arrived[layer % 2], t->recall);
}

enum pkv_status pkvi_transfer_await_recall(struct pkvi_tier *t, uint32_t layer)
{
    if (!t->recalling[layer % 2]) {
        return PKV_OK;
    }
    t->recalling[layer % 2] = false;
    return await(t, PKVI_EDGE_RECALL_ATTEND, t->compute, t->arrived[layer % 2]);
}

enum pkv_status pkvi_transfer_thin(struct pkvi_tier *t, const struct pkv_args_thin *args)
{
    return pkvi_launch(t->compute, t->thin_kernel, args);
}

/* Enqueue the stores of the blocks [state->sealed, blocks). */
static enum pkv_status store_blocks(struct pkvi_tier *t, struct pkvi_copies *copies, uint32_t seq,
                                    uint32_t layer, uint32_t blocks)
{
    const struct pkvi_tier_layer *l = &t->layer[layer];
    struct pkvi_tier_state *state = &t->seq[seq].state[layer];
    for (uint32_t b = state->sealed; b < blocks; b++) {
        const pkv_addr *row = pkvi_tier_row(t, seq, b) + l->head_base;
        if (state->block[b] != PKVI_NO_PLACE) {
            pkvi_places_release(&t->blocks, state->block[b]); /* it was cut, and is full again */
        }
        state->block[b] = pkvi_places_take(&t->blocks);
        if (state->block[b] == PKVI_NO_PLACE) {
            return PKV_FAIL(PKV_ERR_STATE, "KV tier: no host block left of %u", t->blocks.count);
        }
        const pkv_addr to = pkvi_host_block_addr(t, state->block[b]);
        for (uint32_t h = 0; h < l->info.kv_heads; h++) {
            PKV_TRY(
                pkvi_copies_add(copies, to + (uint64_t)h * l->page_bytes, row[h], l->page_bytes));
        }
        t->report.stored_bytes += (uint64_t)l->info.kv_heads * l->page_bytes;
        t->stores_pending = true;
    }
    state->sealed = blocks > state->sealed ? blocks : state->sealed;
    return PKV_OK;
}

enum pkv_status pkvi_transfer_after_compute(struct pkvi_tier *t, struct pkv_stream *stream)
{
    PKV_TRY(pkvi_event_record(t->appended, t->compute));
    return await(t, PKVI_EDGE_APPEND_STORE, stream, t->appended);
}

enum pkv_status pkvi_transfer_store_tile(struct pkvi_tier *t, const struct pkvi_tier_rows *rows)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->store};
    bool any = false;
    for (uint32_t i = 0; i < rows->append.span_count; i++) {
        const struct pkv_row_span *span = &rows->host_spans[i];
        const uint32_t blocks = (span->first_position + span->rows) / PKV_PAGE_TOKENS;
        if (!t->seq[span->view].state[rows->layer].buffered) {
            continue;
        }
        if (!any) {
            PKV_TRY(pkvi_transfer_after_compute(t, t->store));
            any = true;
        }
        PKV_TRY(store_blocks(t, &copies, span->view, rows->layer, blocks));
    }
    if (!any) {
        return PKV_OK;
    }
    PKV_TRY(pkvi_copies_flush(&copies));
    return pkvi_event_record(t->tile_stored[rows->row_tile], t->store);
}

/* A pass of the other lane may have stores behind the event. */
static void record_all(struct pkvi_tier *t)
{
    for (uint32_t s = 0; s < t->slots; s++) {
        for (uint32_t l = 0; l < t->config.layers; l++) {
            t->seq[s].state[l].recorded = t->seq[s].state[l].sealed;
        }
    }
}

enum pkv_status pkvi_transfer_store_pass(struct pkvi_tier *t)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->store};
    bool any = false;
    for (uint32_t p = 0; p < t->part_count; p++) {
        const struct pkvi_tier_part *part = &t->part[p];
        const uint32_t blocks = (part->tokens + part->rows) / PKV_PAGE_TOKENS;
        for (uint32_t l = 0; l < t->config.layers; l++) {
            const struct pkvi_tier_state *state = &t->seq[part->seq].state[l];
            if (!t->layer[l].global || state->buffered || state->sealed >= blocks) {
                continue;
            }
            if (!any) {
                PKV_TRY(pkvi_transfer_after_compute(t, t->store));
                any = true;
            }
            PKV_TRY(store_blocks(t, &copies, part->seq, l, blocks));
        }
    }
    PKV_TRY(pkvi_copies_flush(&copies));
    if (t->stores_pending) {
        PKV_TRY(pkvi_event_record(t->stored, t->store));
        t->stores_pending = false;
        t->stores_running = true;
        record_all(t);
    }
    return PKV_OK;
}

enum pkv_status pkvi_transfer_keep(struct pkvi_tier *t, uint32_t layer)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    const struct pkvi_tier_layer *l = &t->layer[layer];
    for (uint32_t p = 0; p < t->part_count; p++) {
        const uint32_t seq = t->part[p].seq;
        const struct pkvi_tier_state *state = &t->seq[seq].state[layer];
        for (uint32_t i = 0; state->buffered && i < state->keep_count; i++) {
            const pkv_addr *row = pkvi_tier_row(t, seq, state->keep_first + i) + l->head_base;
            for (uint32_t h = 0; h < l->info.kv_heads; h++) {
                PKV_TRY(pkvi_copies_add(&copies, state->kept[i * l->info.kv_heads + h], row[h],
                                        l->page_bytes));
            }
        }
    }
    return pkvi_copies_flush(&copies);
}

static void publish_all(struct pkvi_tier *t)
{
    for (uint32_t s = 0; s < t->slots; s++) {
        for (uint32_t l = 0; l < t->config.layers; l++) {
            t->seq[s].state[l].published = t->seq[s].state[l].recorded;
        }
    }
    t->stores_running = false;
}

enum pkv_status pkvi_transfer_poll(struct pkvi_tier *t)
{
    if (!t->stores_running) {
        return PKV_OK;
    }
    enum pkv_status status =
        kept(t, PKVI_EDGE_STORE_PUBLISH) ? pkvi_event_query(t->stored) : PKV_OK;
    if (status == PKV_PENDING) {
        return PKV_OK;
    }
    PKV_TRY(status);
    publish_all(t);
    return PKV_OK;
}

enum pkv_status pkvi_transfer_settle_stores(struct pkvi_tier *t)
{
    t->stores_pending = false;
    PKV_TRY(pkvi_stream_sync(t->store));
    record_all(t);
    publish_all(t);
    return PKV_OK;
}

enum pkv_status pkvi_transfer_publish(struct pkvi_tier *t, struct pkvi_tier_state *state,
                                      uint32_t blocks)
{
    if (state->published >= blocks) {
        return PKV_OK;
    }
    t->report.late_stores++;
    if (kept(t, PKVI_EDGE_STORE_PUBLISH)) {
        PKV_TRY(pkvi_event_sync(t->stored));
    }
    publish_all(t);
    return PKV_OK;
}

enum pkv_status pkvi_transfer_read_meters(struct pkvi_tier *t)
{
    for (uint32_t i = 0; i < t->meters_used; i++) {
        const struct pkvi_tier_meter *meter = &t->meter[i];
        uint64_t load_ns = 0, wait_ns = 0;
        enum pkv_status status = pkvi_event_elapsed(meter->load_begin, meter->load_end, &load_ns);
        if (status == PKV_OK) {
            status = pkvi_event_elapsed(meter->wait_begin, meter->wait_end, &wait_ns);
        }
        if (status == PKV_PENDING) { /* of a pass that was left: its loads may still run */
            continue;
        }
        PKV_TRY(status);
        t->report.sampled_tiles++;
        t->report.sampled_bytes += meter->bytes;
        t->report.sampled_load_ns += load_ns;
        t->report.sampled_wait_ns += wait_ns;
    }
    t->meter_stride = t->pass_tiles / PKVI_TIER_METERS + 1; /* passes are much alike */
    t->pass_tiles = t->meters_used = 0;
    return PKV_OK;
}

enum pkv_status pkvi_transfer_load(struct pkvi_tier *t, const struct pkvi_tier_state *state,
                                   uint32_t layer, uint32_t first, uint32_t count, uint32_t slot)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->load};
    const struct pkvi_tier_layer *l = &t->layer[layer];
    const uint64_t block_bytes = (uint64_t)l->info.kv_heads * l->page_bytes;
    pkv_addr to = t->staging + slot * (t->sizes.staging_bytes / t->sizes.tiles);
    t->metered = t->pass_tiles++ % t->meter_stride == 0 && t->meters_used < PKVI_TIER_METERS;
    PKV_TRY(await(t, PKVI_EDGE_ATTEND_LOAD, t->load, t->attended[slot]));
    if (t->metered) {
        t->meter[t->meters_used].bytes = count * block_bytes;
        PKV_TRY(pkvi_event_record(t->meter[t->meters_used].load_begin, t->load));
    }
    for (uint32_t b = first; b < first + count; b++, to += block_bytes) {
        PKV_TRY(
            pkvi_copies_add(&copies, to, pkvi_host_block_addr(t, state->block[b]), block_bytes));
    }
    PKV_TRY(pkvi_copies_flush(&copies));
    if (t->metered) {
        PKV_TRY(pkvi_event_record(t->meter[t->meters_used].load_end, t->load));
    }
    t->report.loaded_bytes += count * block_bytes;
    t->report.loaded_tiles++;
    return pkvi_event_record(t->loaded[slot], t->load);
}

enum pkv_status pkvi_transfer_loaded(struct pkvi_tier *t, uint32_t slot)
{
    struct pkvi_tier_meter *meter = &t->meter[t->meters_used];
    if (t->metered) {
        PKV_TRY(pkvi_event_record(meter->wait_begin, t->compute));
    }
    PKV_TRY(await(t, PKVI_EDGE_LOAD_ATTEND, t->compute, t->loaded[slot]));
    if (t->metered) {
        t->meters_used++;
        PKV_TRY(pkvi_event_record(meter->wait_end, t->compute));
    }
    return PKV_OK;
}

enum pkv_status pkvi_transfer_attended(struct pkvi_tier *t, uint32_t slot)
{
    return pkvi_event_record(t->attended[slot], t->compute);
}

enum pkv_status pkvi_transfer_blocks(struct pkvi_copies *copies, uint32_t seq, uint32_t layer,
                                     uint32_t first, uint32_t end, bool load)
{
    struct pkvi_tier *t = copies->tier;
    const struct pkvi_tier_layer *l = &t->layer[layer];
    const struct pkvi_tier_state *state = &t->seq[seq].state[layer];
    for (uint32_t b = first; b < end; b++) {
        const pkv_addr *row = pkvi_tier_row(t, seq, b) + l->head_base;
        const pkv_addr block = pkvi_host_block_addr(t, state->block[b]);
        for (uint32_t h = 0; h < l->info.kv_heads; h++) {
            const pkv_addr host = block + (uint64_t)h * l->page_bytes;
            PKV_TRY(
                pkvi_copies_add(copies, load ? row[h] : host, load ? host : row[h], l->page_bytes));
        }
    }
    const uint64_t bytes = (uint64_t)(end - first) * l->info.kv_heads * l->page_bytes;
    t->report.loaded_bytes += load ? bytes : 0;
    t->report.stored_bytes += load ? 0 : bytes;
    return PKV_OK;
}

enum pkv_status pkvi_transfer_fork_rings(struct pkvi_tier *t, uint32_t from, uint32_t to)
{
    struct pkvi_copies copies = {.tier = t, .stream = t->compute};
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        const uint64_t bytes = pkvi_tier_ring_bytes(layer);
        if (bytes > 0) {
            PKV_TRY(pkvi_copies_add(&copies, layer->ring + to * bytes, layer->ring + from * bytes,
                                    bytes));
        }
    }
    return pkvi_copies_flush(&copies);
}

enum pkv_status pkvi_transfer_park_rings(struct pkvi_copies *copies, uint32_t share,
                                         uint32_t parking, bool load)
{
    struct pkvi_tier *t = copies->tier;
    pkv_addr host = t->parked_rings + parking * t->sizes.parking_bytes;
    for (uint32_t l = 0; l < t->config.layers; l++) {
        const struct pkvi_tier_layer *layer = &t->layer[l];
        const uint64_t bytes = pkvi_tier_ring_bytes(layer);
        const pkv_addr ring = layer->ring + share * bytes;
        if (bytes > 0) {
            PKV_TRY(pkvi_copies_add(copies, load ? ring : host, load ? host : ring, bytes));
        }
        t->report.loaded_bytes += load ? bytes : 0;
        t->report.stored_bytes += load ? 0 : bytes;
        host += bytes;
    }
    return PKV_OK;
}

enum pkv_status pkvi_transfer_arriving(struct pkvi_tier *t, uint32_t seq)
{
    t->seq[seq].arriving = true;
    return pkvi_event_record(t->unparked, t->load);
}

enum pkv_status pkvi_transfer_arrived(struct pkvi_tier *t, uint32_t seq)
{
    if (!t->seq[seq].arriving) {
        return PKV_OK;
    }
    for (uint32_t s = 0; s < t->slots; s++) { /* the event is the last one's: all are waited for */
        t->seq[s].arriving = false;
    }
    return await(t, PKVI_EDGE_UNPARK_ATTEND, t->compute, t->unparked);
}

enum pkv_status pkvi_transfer_before_park(struct pkvi_tier *t)
{
    PKV_TRY(pkvi_transfer_after_compute(t, t->store));
    return await(t, PKVI_EDGE_UNPARK_PARK, t->store, t->unparked);
}
