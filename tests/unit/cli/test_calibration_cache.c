/* Calibrations in the cache folder: found, made once, made again where the file is damaged or of
 * another version, and done without where nothing can be kept. */
#include "tests/support/pkv_test.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cli/cache.c"
#include "runtime/cli/calibration.c"

static struct pkvi_engine engine;
static char folder[64], notes[4096];

/* ---- what the rest of the program does ---- */

void pkvi_say_note(const char *format, ...)
{
    va_list arguments;
    const size_t at = strlen(notes);
    va_start(arguments, format);
    vsnprintf(notes + at, sizeof notes - at, format, arguments);
    va_end(arguments);
    strncat(notes, "\n", sizeof notes - strlen(notes) - 1);
}

uint64_t pkvi_now_ns(void)
{
    return 0;
}

double pkvi_seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

/* ---- */

static uint32_t lines(void)
{
    uint32_t count = 0;
    for (const char *at = notes; (at = strchr(at, '\n')) != NULL; at++) {
        count++;
    }
    return count;
}

/* A calibration is there whatever is the matter; so many notes, with these words. */
static void get(const char *cache_dir, uint32_t note_count, const char *first, const char *last)
{
    const struct pkvi_engine_options options = {.cache_dir = cache_dir};
    struct pkv_calibration_info info;
    notes[0] = '\0';
    struct pkv_calibration *calibration = pkvi_cli_calibration_get(&engine, &options);
    assert_non_null(calibration);
    pkv_calibration_query(calibration, &info);
    assert_int_equal(info.layers, 2);
    pkv_calibration_close(calibration);
    if (lines() != note_count || !strstr(notes, first) || !strstr(notes, last)) {
        fail_msg("expected %u lines with '%s' and '%s': %s", note_count, first, last, notes);
    }
}

static void test_get__first_and_later__measured_once(void **state)
{
    (void)state;
    get(folder, 2, "measured once", "kept in ");
    get(folder, 0, "", "");
    get(folder, 0, "", "");
}

static void test_get__damaged_or_older_file__measured_again(void **state)
{
    (void)state;
    const struct pkvi_engine_options options = {.cache_dir = folder};
    char *path = pkvi_cli_calibration_path(&engine, &options);
    static const struct {
        long at;
        const char *mentions;
    } changes[] = {{1000, "damaged"}, {8, "of version"}, {0, "not a file"}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, changes[i].at, SEEK_SET), 0);
        assert_int_equal(fputc(0x7f, file), 0x7f);
        assert_int_equal(fclose(file), 0);
        get(folder, 3, changes[i].mentions, "kept in ");
        get(folder, 0, "", "");
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    get(folder, 3, "regular file", "not kept");
    assert_int_equal(rmdir(path), 0);
    free(path);
}

static void test_get__nowhere_to_write__goes_on(void **state)
{
    (void)state;
    assert_int_equal(unsetenv("HOME") | unsetenv("XDG_CACHE_HOME"), 0);
    get(NULL, 2, "measured once", "no cache folder");
    get("/dev/null/x", 2, "measured once", "not kept: /dev/null/x");
    get("/proc", 2, "measured once", "not kept: /proc");
}

static int open_all(void **state)
{
    (void)state;
    const struct pkv_model_config config = pkv_model_config_default();
    snprintf(folder, sizeof folder, P_tmpdir "/calibration_cache.XXXXXX");
    return mkdtemp(folder) && pkv_device_open("cpu", NULL, &engine.device) == PKV_OK &&
                   pkv_model_open(engine.device, pkvt_path("golden/tiny/llama_q4_1.gguf"), &config,
                                  &engine.model) == PKV_OK
               ? 0
               : -1;
}

static int close_all(void **state)
{
    (void)state;
    char sub[80];
    pkv_model_close(engine.model);
    pkv_device_close(engine.device);
    snprintf(sub, sizeof sub, "%s/calibration", folder);
    return rmdir(sub) == 0 && rmdir(folder) == 0 ? 0 : -1; /* nothing half-written is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get__first_and_later__measured_once),
        cmocka_unit_test(test_get__damaged_or_older_file__measured_again),
        cmocka_unit_test(test_get__nowhere_to_write__goes_on),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
