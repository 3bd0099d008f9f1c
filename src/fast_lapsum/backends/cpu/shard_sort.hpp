// Sorting the scores of a band, since there may be tens of thousands.

#pragma once

#include "digit_sort.hpp"

namespace {

// Descending; NaN come first or last, by their signs.
template <class T>
void sort_descending(std::vector<T>& scores) {
    using Bits = typename Real<T>::Bits;
    constexpr size_t kFew = 512;  // a comparison sort is faster
    if (scores.size() < kFew) {
        return std::sort(scores.begin(), scores.end(),
                         [](T a, T b) { return ordered_bits(a) > ordered_bits(b); });
    }
    const size_t n = scores.size();
    std::vector<Bits> falling(n), spare(n);
    for (size_t i = 0; i < n; ++i) falling[i] = Bits(~ordered_bits(scores[i]));
    const Bits* sorted = sort_by_digits(falling.data(), spare.data(), int64_t(n), 1,
                                        [](Bits bits) { return bits; });
    for (size_t i = 0; i < n; ++i) scores[i] = number_of<T>(Bits(~sorted[i]));
}

}  // namespace
