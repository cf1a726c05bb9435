/* 16-bit floats: every value survives the round trip, and rounding is to the nearest even. */
#include "tests/support/pkv_test.h"

#include <math.h>

#include "kernels/half.h"

/* Value of a finite binary16 from its definition. */
static double f16_value(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return half & 0x8000 ? -value : value;
}

static void test_f16__every_finite_value__round_trips(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x10000; half++) {
        float value = pkvi_f16_to_f32((uint16_t)half);
        if ((half & 0x7c00) == 0x7c00) {
            assert_true((half & 0x3ff) ? isnan(value) : isinf(value));
            continue;
        }
        assert_true((double)value == f16_value((uint16_t)half));
        assert_int_equal(pkvi_f32_to_f16(value), half);
    }
}

static void test_f16__between_two_values__nearest_even(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x7bff; half++) {
        float low = pkvi_f16_to_f32((uint16_t)half), high = pkvi_f16_to_f32((uint16_t)(half + 1));
        float middle = low + (high - low) / 2;
        uint32_t even = half + (half & 1);
        assert_int_equal(pkvi_f32_to_f16(middle), even);
        assert_int_equal(pkvi_f32_to_f16(nextafterf(middle, 0.0f)), half);
        assert_int_equal(pkvi_f32_to_f16(nextafterf(middle, INFINITY)), half + 1);
        assert_int_equal(pkvi_f32_to_f16(-middle), even | 0x8000);
    }
    assert_int_equal(pkvi_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(pkvi_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(pkvi_f32_to_f16(INFINITY), 0x7c00);
    assert_true(isnan(pkvi_f16_to_f32(pkvi_f32_to_f16(NAN))));
}

static void test_bf16__between_two_values__nearest_even(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x7f7f; half++) {
        float low = pkvi_bf16_to_f32((uint16_t)half);
        float middle = pkvi_f32_from_bits(half << 16 | 0x8000u);
        assert_int_equal(pkvi_f32_to_bf16(low), half);
        assert_int_equal(pkvi_f32_to_bf16(middle), half + (half & 1));
        assert_int_equal(pkvi_f32_to_bf16(nextafterf(middle, 0.0f)), half);
        assert_int_equal(pkvi_f32_to_bf16(nextafterf(middle, INFINITY)), half + 1);
    }
    assert_true(isnan(pkvi_bf16_to_f32(pkvi_f32_to_bf16(pkvi_f32_from_bits(0x7f800001u)))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16__every_finite_value__round_trips),
        cmocka_unit_test(test_f16__between_two_values__nearest_even),
        cmocka_unit_test(test_bf16__between_two_values__nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
