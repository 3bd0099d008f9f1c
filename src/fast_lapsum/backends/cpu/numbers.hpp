// Numbers: half precision and the exponential, written so that loops over them vectorise.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__GLIBC__) && defined(__x86_64__)
// The versions of these that every glibc has: a library that is built with a new one loads with all
// from 2.17 on. They differ in how errors are told, which nobody here asks for.
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver exp2, exp2@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver hypot, hypot@GLIBC_2.2.5");
#endif

#if defined(__GNUC__)
#define LAPSUM_INLINE static inline __attribute__((always_inline))
#define LAPSUM_MEMBER inline __attribute__((always_inline))
#else
#define LAPSUM_INLINE static inline
#define LAPSUM_MEMBER inline
#endif

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// A sum this small has lost its digits to denormals: treated as zero (2^-100).
constexpr double kVanished = 7.888609052210118e-31;
// Terms under 2^-126 are left out of float sums: n 2^-62 at most of one that is at least this.
constexpr double kWhole = 0x1p-64;

template <class To, class From>
LAPSUM_INLINE To bits_as(From value) {
    To out;
    static_assert(sizeof(To) == sizeof(From), "same size");
    std::memcpy(&out, &value, sizeof out);
    return out;
}

// The nearest number that compares as greater, +inf at most. Where a process has denormals flushed
// all of them compare as 0, and the nearest one to 0 would be no step at all.
template <class T>
LAPSUM_INLINE T number_above(T x) {
    using Limits = std::numeric_limits<T>;
    const T next = std::nextafter(x, Limits::infinity());
    return next > x || x == Limits::infinity() ? next : Limits::min();
}

template <class T>
LAPSUM_INLINE T number_below(T x) {
    return -number_above(-x);
}

template <class T>
struct Real;

template <>
struct Real<float> {
    using Bits = uint32_t;
    static constexpr float vanishing = 127.0f;         // 2^-127 is taken as 0
    static constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    static constexpr int mantissa = 23, bias = 127;
    static constexpr int lanes = 16;  // of a 64-byte vector
};

template <>
struct Real<double> {
    using Bits = uint64_t;
    static constexpr double vanishing = 1023.0;
    static constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr int lanes = 8;
};

// Distance from the outermost score, in temperatures, at which a mask is exactly 0 or 1.
constexpr double kSaturation = 800;
// The highest temperature is this part of the largest number: distances of 128 t must exist. Beyond
// them float has only zeros; double goes on to 745 t, where p may be off at the highest ones.
constexpr double kHottest = 256;
constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

// A temperature that can be divided by: 1 for rows in the hard limit, and for those without one.
template <class T>
LAPSUM_INLINE double divisible_temperature(double t) {
    constexpr double kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
    return t >= kMin && t <= kMax / kHottest ? t : 1;
}

// A double rounded to T, also where T has no number that large: a plain cast is undefined there.
template <class T>
LAPSUM_INLINE T narrowed(double value) {
    constexpr T kMax = std::numeric_limits<T>::max(), kEnd = std::numeric_limits<T>::infinity();
    constexpr double kOver = sizeof(T) == 4 ? 0x1.ffffffp127 : double(kEnd);  // half an ulp
    if (value > kMax) return value < kOver ? kMax : kEnd;
    if (value < -double(kMax)) return value > -kOver ? -kMax : -kEnd;
    return T(value);
}

// The same with the largest number in place of infinity.
template <class T>
LAPSUM_INLINE T saturated(double value) {
    constexpr double kMax = std::numeric_limits<T>::max();
    return value > kMax ? T(kMax) : value < -kMax ? T(-kMax) : T(value);
}

LAPSUM_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LAPSUM_INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

// 2^-g on |g| <= 1/2: minimax for float (2e-9), Taylor for double.
LAPSUM_INLINE float exp2_reduced(float g) {
    float p = 1.535336196e-4f;
    p = fused(p, g, -1.339887502e-3f);
    p = fused(p, g, 9.618436918e-3f);
    p = fused(p, g, -5.550332367e-2f);
    p = fused(p, g, 2.402264774e-1f);
    p = fused(p, g, -6.931471825e-1f);
    return fused(p, g, 1.0f);
}

LAPSUM_INLINE double exp2_reduced(double g) {
    double p = -1.36914888539041241e-12;
    p = fused(p, g, 2.56784359934881958e-11);
    p = fused(p, g, -4.44553827187081007e-10);
    p = fused(p, g, 7.05491162080112088e-09);
    p = fused(p, g, -1.01780860092396960e-07);
    p = fused(p, g, 1.32154867901443053e-06);
    p = fused(p, g, -1.52527338040598377e-05);
    p = fused(p, g, 1.54035303933816061e-04);
    p = fused(p, g, -1.33335581464284411e-03);
    p = fused(p, g, 9.61812910762847688e-03);
    p = fused(p, g, -5.55041086648215762e-02);
    p = fused(p, g, 2.40226506959100694e-01);
    p = fused(p, g, -6.93147180559945286e-01);
    return fused(p, g, 1.0);
}

// Past this 2^-v is taken as 0; infinity and NaN are brought back to it.
template <class T>
LAPSUM_INLINE T clamp_decay(T v) {
    return v < Real<T>::vanishing ? v : Real<T>::vanishing;
}

// 2^-(v + v_low) for 0 <= v <= vanishing: exactly 1 at 0 and exactly 0 at the far end. Vectorises.
template <class T>
LAPSUM_INLINE T decay_clamped(T v, T v_low) {
    using R = Real<T>;
    const T shifted = R::round_magic - v;
    const T rest = v + (shifted - R::round_magic);  // v - round(v)
    // The low bits of `shifted` hold -round(v): moved into the exponent they scale by that power.
    const auto exponent = (bits_as<typename R::Bits>(shifted) + typename R::Bits(R::bias))
                          << R::mantissa;
    return exp2_reduced(rest + v_low) * bits_as<T>(exponent);
}

template <class T>
LAPSUM_INLINE T decay_clamped(T v) {
    using R = Real<T>;
    const T shifted = R::round_magic - v;
    const auto exponent = (bits_as<typename R::Bits>(shifted) + typename R::Bits(R::bias))
                          << R::mantissa;
    return exp2_reduced(v + (shifted - R::round_magic)) * bits_as<T>(exponent);
}

template <class T>
LAPSUM_INLINE T decay(T v) {
    return decay_clamped(clamp_decay(v));
}

LAPSUM_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t magnitude = uint32_t(h & 0x7fffu) << 13;
    // 2^112 moves the exponent's bias from 15 to 127, denormals included; inf and NaN keep theirs.
    const float scaled = bits_as<float>(magnitude) * 5.192296858534828e33f;
    const uint32_t special = magnitude | 0x7f800000u;
    const uint32_t bits = magnitude >= 0x0f800000u ? special : bits_as<uint32_t>(scaled);
    return bits_as<float>(sign | bits);
}

LAPSUM_INLINE uint16_t float_to_half(float f) {
    const uint32_t bits = bits_as<uint32_t>(f), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> 16) & 0x8000u;
    // Denormal halves: adding 0.5 aligns the last bit of a half with that of the float.
    const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t out = magnitude < 0x38800000u ? tiny : normal;
    out = magnitude >= 0x477ff000u ? 0x7c00u : out;
    out = magnitude > 0x7f800000u ? 0x7e00u : out;
    return uint16_t(sign | out);
}

LAPSUM_INLINE float bfloat_to_float(uint16_t h) { return bits_as<float>(uint32_t(h) << 16); }

LAPSUM_INLINE uint16_t float_to_bfloat(float f) {
    const uint32_t bits = bits_as<uint32_t>(f);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

}  // namespace
