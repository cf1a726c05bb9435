/* Pre-tokenizers: the words of texts whose cutting follows from the rules by hand. */
#include "tests/support/pkv_test.h"

#include <stdio.h>
#include <string.h>

#include "runtime/text/text.h"

struct words {
    char text[1024]; /* words with | between */
    size_t bytes;
};

static enum pkv_status note_word(void *context, const char *text, size_t bytes)
{
    struct words *words = context;
    if (words->bytes > 0) {
        words->text[words->bytes++] = '|';
    }
    memcpy(words->text + words->bytes, text, bytes);
    words->bytes += bytes;
    words->text[words->bytes] = '\0';
    return PKV_OK;
}

static void expect(const char *pre, const char *text, const char *want)
{
    struct pkvi_split *split;
    struct pkvi_split_match *match;
    struct words words = {.bytes = 0};
    assert_ok(pkvi_split_open(pre, &split));
    assert_ok(pkvi_split_match_open(&match));
    assert_ok(pkvi_split_run(split, match, text, strlen(text), note_word, &words));
    assert_string_equal(words.text, want);
    pkvi_split_match_close(match);
    pkvi_split_close(split);
}

static void test_split__gpt2__words(void **state)
{
    (void)state;
    expect("gpt-2", "", "");
    expect("gpt-2", "I'm he'll HE'LL", "I|'m| he|'ll| HE|'|LL");
    expect("gpt-2", "a  b   c ", "a| | b|  | c| ");
    expect("gpt-2", "x12345 67!?", "x|12345| 67|!?");
    expect("gpt-2", "a\n\nb", "a|\n|\n|b");
    expect("gpt-2", "\xc3\xa9\xc3\xa9 \xe4\xb8\xad", "\xc3\xa9\xc3\xa9| \xe4\xb8\xad");
    expect("gpt-2", "a \xe2\x80\x83 b", "a| \xe2\x80\x83| b"); // U+2003 is white space
    expect("gpt-2", "a\xe1\xa0\x8e\x62", "a|\xe1\xa0\x8e|b");  // U+180E is not
}

static void test_split__smollm__digits_alone(void **state)
{
    (void)state;
    expect("smollm", "x12 3", "x|1|2| |3");
    expect("smollm", "a   7", "a|   |7"); // cut at the digit: all three spaces end their part
}

static void test_split__default__punctuation_then_three_digits(void **state)
{
    (void)state;
    expect("default", "a+b, 12345 x", "a|+|b|,| |123|45| x");
}

static void test_split__llama3_and_qwen2__words(void **state)
{
    (void)state;
    expect("llama-bpe", "HE'LL 12345\n\n x", "HE|'LL| |123|45|\n\n| x");
    expect("qwen2", "HE'LL 123\n\n x", "HE|'LL| |1|2|3|\n\n| x");
    expect("qwen2", "a  \n  b!\n(c", "a|  \n| | b|!\n|(c");
    expect("llama-bpe", "  12", " | |12");
}

static void test_split__unknown_name__refused_naming_all(void **state)
{
    (void)state;
    struct pkvi_split *split;
    assert_status(pkvi_split_open("gpt-5", &split), PKV_ERR_UNSUPPORTED);
    assert_non_null(strstr(pkv_error_text(), "'gpt-5'"));
    assert_non_null(strstr(pkv_error_text(), "qwen2"));
    assert_status(pkvi_split_open("", &split), PKV_ERR_UNSUPPORTED);
    assert_status(pkvi_split_open("gpt-2 phi-2", &split), PKV_ERR_UNSUPPORTED);
    assert_status(pkvi_split_open("gpt", &split), PKV_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split__gpt2__words),
        cmocka_unit_test(test_split__smollm__digits_alone),
        cmocka_unit_test(test_split__default__punctuation_then_three_digits),
        cmocka_unit_test(test_split__llama3_and_qwen2__words),
        cmocka_unit_test(test_split__unknown_name__refused_naming_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
