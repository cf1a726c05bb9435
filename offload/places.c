/* places.c: a stack of free numbers and a count of owners for each. */
#include "offload/places.h"

#include <stdlib.h>

#include "runtime/base/check.h"

uint64_t pkvi_places_bytes(uint32_t count)
{
    return 2 * (uint64_t)count * sizeof(uint32_t);
}

enum pkv_status pkvi_places_open(struct pkvi_places *places, uint32_t count)
{
    *places = (struct pkvi_places){.count = count, .free_count = count};
    places->free = malloc((count + (size_t)1) * sizeof *places->free);
    places->refs = calloc(count + (size_t)1, sizeof *places->refs);
    if (!places->free || !places->refs) {
        pkvi_places_close(places);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "table of %u places: %llu bytes", count,
                        (unsigned long long)pkvi_places_bytes(count));
    }
    for (uint32_t i = 0; i < count; i++) {
        places->free[i] = count - 1 - i;
    }
    return PKV_OK;
}

void pkvi_places_close(struct pkvi_places *places)
{
    free(places->free);
    free(places->refs);
    *places = (struct pkvi_places){0};
}

uint32_t pkvi_places_take(struct pkvi_places *places)
{
    if (places->free_count == 0) {
        return PKVI_NO_PLACE;
    }
    uint32_t place = places->free[--places->free_count];
    places->refs[place] = 1;
    return place;
}

void pkvi_places_retain(struct pkvi_places *places, uint32_t place)
{
    places->refs[place]++;
}

void pkvi_places_release(struct pkvi_places *places, uint32_t place)
{
    if (--places->refs[place] == 0) {
        places->free[places->free_count++] = place;
    }
}
