// Sorting the scores of a band: by digits, since there may be tens of thousands.

#pragma once

#include <vector>

#include "numbers.hpp"

namespace {

// Bits in the order of the numbers: those of negative ones turned over.
template <class T>
LAPSUM_INLINE typename Real<T>::Bits ordered_bits(T value) {
    using Bits = typename Real<T>::Bits;
    constexpr Bits kSign = Bits(1) << (8 * sizeof(T) - 1);
    const Bits bits = bits_as<Bits>(value);
    return bits & kSign ? ~bits : bits | kSign;
}

template <class T>
LAPSUM_INLINE T number_of(typename Real<T>::Bits order) {
    using Bits = typename Real<T>::Bits;
    constexpr Bits kSign = Bits(1) << (8 * sizeof(T) - 1);
    return bits_as<T>(order & kSign ? Bits(order & ~kSign) : Bits(~order));
}

// Descending; NaN come first or last, by their signs.
template <class T>
void sort_descending(std::vector<T>& scores) {
    using Bits = typename Real<T>::Bits;
    constexpr size_t kFew = 512;  // a comparison sort is faster
    constexpr int kDigit = 11, kDigits = (8 * int(sizeof(T)) + kDigit - 1) / kDigit;
    if (scores.size() < kFew) {
        return std::sort(scores.begin(), scores.end(),
                         [](T a, T b) { return ordered_bits(a) > ordered_bits(b); });
    }
    const size_t n = scores.size();
    std::vector<Bits> from(n), to(n);
    std::vector<uint32_t> counts(size_t(kDigits) << kDigit);
    constexpr Bits kMask = (Bits(1) << kDigit) - 1;
    for (size_t i = 0; i < n; ++i) {
        from[i] = Bits(~ordered_bits(scores[i]));
        for (int digit = 0; digit < kDigits; ++digit)
            ++counts[(size_t(digit) << kDigit) + size_t((from[i] >> (digit * kDigit)) & kMask)];
    }
    for (int digit = 0; digit < kDigits; ++digit) {
        uint32_t* count = counts.data() + (size_t(digit) << kDigit);
        uint32_t before = 0;
        bool is_one = false;  // all scores share this digit
        for (size_t i = 0; i <= size_t(kMask); ++i) {
            is_one |= count[i] == n;
            const uint32_t here = count[i];
            count[i] = before;
            before += here;
        }
        if (is_one) continue;
        for (size_t i = 0; i < n; ++i)
            to[count[size_t((from[i] >> (digit * kDigit)) & kMask)]++] = from[i];
        from.swap(to);
    }
    for (size_t i = 0; i < n; ++i) scores[i] = number_of<T>(Bits(~from[i]));
}

}  // namespace
