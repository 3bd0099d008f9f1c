// Sorting by digits: how many have a digit says where those with the next one go. Three turns sort
// floats, each of which goes over all of them twice, where comparisons would take twenty. Rows of
// few items have four turns with fewer counts.

#pragma once

#include <algorithm>
#include <vector>

#include "numbers.hpp"
#include "threads.hpp"

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

// part(i, first, end) for parts of 0 ... n - 1, one for each thread.
template <class Part>
void each_part(int64_t n, int threads, Part part) {
    for_each(threads, threads, 1, [&](int64_t i) {
        part(i, n * i / threads, n * (i + 1) / threads);
    });
}

// Sorts by key(item), ascending; items of one key keep their order. `spare` has room for as many, and
// what is returned is the one of the two that has them in the end.
template <class Item, class Key>
Item* sort_by_digits(Item* items, Item* spare, int64_t n, int threads, Key key) {
    constexpr int kBits = 8 * int(sizeof(key(*items)));
    constexpr int64_t kFew = 2048;  // are not worth going over as many counts
    const int width = n < kFew ? 8 : 11;
    const int64_t values = int64_t(1) << width;
    threads = int(std::clamp<int64_t>(n / (8 * values), 1, threads));  // counts are added up by one
    std::vector<uint32_t> next(size_t(threads * values));  // of each thread and value
    std::vector<uint32_t> begun(size_t(values + 1));       // how many items have lower ones
    for (int shift = 0; shift < kBits; shift += width) {
        const auto digit = [&](const Item& item) {
            return size_t(key(item) >> shift) & size_t(values - 1);
        };
        std::fill(next.begin(), next.end(), 0u);
        each_part(n, threads, [&](int64_t part, int64_t first, int64_t end) {
            uint32_t* count = next.data() + part * values;
            for (int64_t i = first; i < end; ++i) ++count[digit(items[i])];
        });
        std::fill(begun.begin(), begun.end(), 0u);
        for (int64_t part = 0; part < threads; ++part)
            for (int64_t value = 0; value < values; ++value)
                begun[size_t(value + 1)] += next[size_t(part * values + value)];
        const bool is_one = std::find(begun.begin() + 1, begun.end(), uint32_t(n)) != begun.end();
        if (is_one) continue;  // all items share this digit
        for (int64_t value = 0; value < values; ++value)
            begun[size_t(value + 1)] += begun[size_t(value)];
        for (int64_t part = 0; part < threads; ++part)
            for (int64_t value = 0; value < values; ++value) {
                const uint32_t here = next[size_t(part * values + value)];
                next[size_t(part * values + value)] = begun[size_t(value)];
                begun[size_t(value)] += here;
            }
        each_part(n, threads, [&](int64_t part, int64_t first, int64_t end) {
            uint32_t* at = next.data() + part * values;
            for (int64_t i = first; i < end; ++i) spare[at[digit(items[i])]++] = items[i];
        });
        std::swap(items, spare);
    }
    return items;
}

}  // namespace
