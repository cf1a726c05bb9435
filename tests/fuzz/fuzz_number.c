/* Sizes and numbers of the command line: any text is read within its limits or refused. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/number.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);
    if (text == NULL) {
        return 0;
    }
    if (bytes > 0) {
        memcpy(text, data, bytes);
    }
    text[bytes] = '\0';
    int64_t number = 0;
    double real = 0.0;
    if (pkvi_number_int(text, -3, 1000, &number)) {
        check(number >= -3 && number <= 1000);
    }
    if (pkvi_number_size(text, (int64_t)1 << 40, &number)) {
        check(number >= 1 && number <= (int64_t)1 << 40);
    }
    if (pkvi_number_real(text, 0.0, 2.0, true, &real)) {
        check(real > 0.0 && real <= 2.0);
    }
    size_t at = 0;
    int32_t id = 0;
    while (pkvi_number_next(text, bytes, &at, 500, &id) > 0) {
        check(id >= 0 && id <= 500 && at <= bytes);
    }
    check(at <= bytes);
    free(text);
    return 0;
}
