/* lanes_neon.h: lanes.h with NEON and its dot product: four registers of 4. */
#ifndef PKV_CPU_LANES_NEON_H
#define PKV_CPU_LANES_NEON_H

#define PKV_TILE_ROWS 4
#define PKV_SIGNED_NEEDS_SUM 0 /* dot_quads reads x_sum for signed codes */

struct pkvi_f16x {
    float32x4_t v[4];
};
struct pkvi_i16x {
    int32x4_t v[4];
};

PKV_INLINE struct pkvi_f16x pkvi_f16x_set1(float x)
{
    const float32x4_t v = vdupq_n_f32(x);
    return (struct pkvi_f16x){{v, v, v, v}};
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_load(const float *x)
{
    return (struct pkvi_f16x){
        {vld1q_f32(x), vld1q_f32(x + 4), vld1q_f32(x + 8), vld1q_f32(x + 12)}};
}

PKV_INLINE void pkvi_f16x_store(float *x, struct pkvi_f16x a)
{
    for (int i = 0; i < 4; i++) {
        vst1q_f32(x + 4 * i, a.v[i]);
    }
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_add(struct pkvi_f16x a, struct pkvi_f16x b)
{
    for (int i = 0; i < 4; i++) {
        a.v[i] = vaddq_f32(a.v[i], b.v[i]);
    }
    return a;
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_mul(struct pkvi_f16x a, struct pkvi_f16x b)
{
    for (int i = 0; i < 4; i++) {
        a.v[i] = vmulq_f32(a.v[i], b.v[i]);
    }
    return a;
}

/* a * b + c, rounded once */
PKV_INLINE struct pkvi_f16x pkvi_f16x_fma(struct pkvi_f16x a, struct pkvi_f16x b,
                                          struct pkvi_f16x c)
{
    for (int i = 0; i < 4; i++) {
        c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    }
    return c;
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_i16x(struct pkvi_i16x a)
{
    struct pkvi_f16x out;
    for (int i = 0; i < 4; i++) {
        out.v[i] = vcvtq_f32_s32(a.v[i]);
    }
    return out;
}

PKV_INLINE uint16x4_t load_halves(const uint8_t *x)
{
    return vreinterpret_u16_u8(vld1_u8(x));
}

/* 16 IEEE halves */
PKV_INLINE struct pkvi_f16x pkvi_f16x_from_f16(const uint8_t *x)
{
    struct pkvi_f16x out;
    for (int i = 0; i < 4; i++) {
        out.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(load_halves(x + 8 * i)));
    }
    return out;
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_bf16(const uint8_t *x)
{
    struct pkvi_f16x out;
    for (int i = 0; i < 4; i++) {
        out.v[i] = vreinterpretq_f32_u32(vshll_n_u16(load_halves(x + 8 * i), 16));
    }
    return out;
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_widen(int16x8_t low, int16x8_t high)
{
    return (struct pkvi_f16x){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                               vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                               vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                               vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}

/* (byte >> shift) & mask */
PKV_INLINE struct pkvi_f16x pkvi_f16x_from_u8(const uint8_t *x, int shift, int mask)
{
    uint8x16_t bytes = vshlq_u8(vld1q_u8(x), vdupq_n_s8((int8_t)-shift));
    bytes = vandq_u8(bytes, vdupq_n_u8((uint8_t)mask));
    return pkvi_f16x_widen(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))),
                           vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(bytes))));
}

PKV_INLINE struct pkvi_f16x pkvi_f16x_from_i8(const uint8_t *x)
{
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(x));
    return pkvi_f16x_widen(vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
}

/* Quad j of 4 rows, `part` 0 .. 3 of the 16: codes of 4 values a row. */
PKV_INLINE uint8x16_t quad_part(const struct pkvi_codes c, const uint8_t *planes, const int j,
                                const int part)
{
    const int per_low = 8 / c.low;
    uint8x16_t q = vld1q_u8(planes + 64 * (j / per_low) + 16 * part);
    if (c.low < 8) {
        q = vshlq_u8(q, vdupq_n_s8((int8_t)(-c.low * (j % per_low))));
        q = vandq_u8(q, vdupq_n_u8((uint8_t)((1 << c.low) - 1)));
    }
    if (c.high > 0) {
        const int per_high = 8 / c.high, left = c.low - c.high * (j % per_high);
        const uint8_t *from = planes + 64 * c.low + 64 * (j / per_high) + 16 * part;
        const uint8x16_t high = vshlq_u8(vld1q_u8(from), vdupq_n_s8((int8_t)left));
        q = vorrq_u8(q, vandq_u8(high, vdupq_n_u8((uint8_t)(((1 << c.high) - 1) << c.low))));
    }
    return q;
}

/* Write quad j of 16 rows, 64 bytes. */
PKV_INLINE void pkvi_quad_unpack(const struct pkvi_codes c, const uint8_t *planes, const int j,
                                 uint8_t *to)
{
    for (int part = 0; part < 4; part++) {
        vst1q_u8(to + 16 * part, quad_part(c, planes, j, part));
    }
}

/* sum + products of 4 codes of 4 rows and values 4 lane .. 4 lane + 3 of x */
PKV_INLINE int32x4_t dot_lane(int32x4_t sum, int8x16_t q, int8x16_t x, const int lane)
{
    switch (lane) {
    case 0:
        return vdotq_laneq_s32(sum, q, x, 0);
    case 1:
        return vdotq_laneq_s32(sum, q, x, 1);
    case 2:
        return vdotq_laneq_s32(sum, q, x, 2);
    default:
        return vdotq_laneq_s32(sum, q, x, 3);
    }
}

/*
 * sum[i] = products of quads [j0, j1) with row i of x [rows][32] (a block from quad 0 on), summed.
 * Codes are below 128 or signed: the signed dot product serves all.
 */
PKV_INLINE void pkvi_dot_quads(const struct pkvi_codes c, const uint8_t *planes, const int j0,
                               const int j1, const int rows, const int8_t *x, const int32_t *x_sum,
                               struct pkvi_i16x *sum)
{
    (void)x_sum;
    for (int i = 0; i < rows; i++) {
        for (int part = 0; part < 4; part++) {
            sum[i].v[part] = vdupq_n_s32(0);
        }
    }
    PKV_UNROLL
    for (int j = j0; j < j1; j++) {
        int8x16_t q[4];
        for (int part = 0; part < 4; part++) {
            q[part] = vreinterpretq_s8_u8(quad_part(c, planes, j, part));
        }
        PKV_UNROLL
        for (int i = 0; i < rows; i++) {
            const int8x16_t sixteen = vld1q_s8(x + 32 * i + 16 * (j / 4));
            PKV_UNROLL
            for (int part = 0; part < 4; part++) {
                sum[i].v[part] = dot_lane(sum[i].v[part], q[part], sixteen, j % 4);
            }
        }
    }
}

/* sum += codes of value `channel` * spill */
PKV_INLINE void pkvi_add_spill(const struct pkvi_codes c, const uint8_t *planes, uint32_t channel,
                               int32_t spill, struct pkvi_i16x *sum)
{
    const int32x4_t left = vdupq_n_s32(24 - 8 * (int32_t)(channel % 4));
    for (int part = 0; part < 4; part++) {
        const uint8x16_t four = quad_part(c, planes, (int)(channel / 4), part);
        const int32x4_t q = vshrq_n_s32(vshlq_s32(vreinterpretq_s32_u8(four), left), 24);
        sum->v[part] = vmlaq_n_s32(sum->v[part], q, spill);
    }
}

#endif
