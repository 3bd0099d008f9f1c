// A row's scores in order, and where they were.

#pragma once

#include "digit_sort.hpp"
#include "ranking.hpp"

namespace {

template <class T>
struct Placed {
    typename Real<T>::Bits key;
    uint32_t place;
};

// Bits in the order of the scores: zeros of both signs are equal, and NaN of both signs come last.
template <class T>
LAPSUM_INLINE typename Real<T>::Bits rising_bits(T score) {
    using Bits = typename Real<T>::Bits;
    return std::isnan(score) ? Bits(~Bits(0)) : ordered_bits(score + T(0));
}

// Ascending; of descending rows it is the negatives that ascend. Tied scores stay as they were.
template <class T>
void order_row(const T* scores, int64_t n, bool descending, int threads, T* ordered,
               int64_t* order) {
    const auto items = numbers<Placed<T>>(n), spare = numbers<Placed<T>>(n);
    const T sign = descending ? T(-1) : T(1);
    each_part(n, threads, [&](int64_t, int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i)
            items[i] = {rising_bits(sign * scores[i]), uint32_t(i)};
    });
    const Placed<T>* sorted = sort_by_digits(items.get(), spare.get(), n, threads,
                                             [](const Placed<T>& item) { return item.key; });
    each_part(n, threads, [&](int64_t, int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) {
            ordered[i] = number_of<T>(sorted[i].key);
            order[i] = int64_t(sorted[i].place);
        }
    });
}

}  // namespace
