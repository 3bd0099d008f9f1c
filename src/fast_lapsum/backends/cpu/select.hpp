// The k selected scores of a row: their places, the mask's values there, and the gradient of those.

#pragma once

#include "write.hpp"

namespace {

// Appends the places of the scores of a chunk that are over `score`, and of those equal to it as
// long as any are `left`.
template <class T>
void append_places(const T* r, int64_t n, int64_t first, T score, int64_t* left,
                   std::vector<int64_t>& places) {
    constexpr int64_t kGroup = 32;
    for (int64_t start = 0; start < n; start += kGroup) {
        const int64_t length = std::min(kGroup, n - start);
        const T* group = r + start;
        int32_t hits = 0;
#pragma omp simd reduction(+ : hits)
        for (int64_t i = 0; i < length; ++i) hits += group[i] >= score;
        if (hits == 0) continue;
        for (int64_t i = 0; i < length; ++i) {
            const bool is_tied = group[i] == score && *left > 0;
            *left -= is_tied;
            if (is_tied || group[i] > score) places.push_back(first + start + i);
        }
    }
}

// The places of the k largest scores in their order, the earliest of tied scores first.
template <class T>
std::vector<int64_t> places_of(const Row<T>& row, const Boundary& boundary, int64_t k) {
    std::vector<int64_t> places;
    places.reserve(size_t(k));
    if (k == 0) return places;
    int64_t left = k - boundary.above;
    const T score = T(boundary.score);
    const auto append = [&](int64_t first, int64_t count, int64_t* tied_left,
                            std::vector<int64_t>& to) {
        alignas(64) T buffer[kChunk];
        for (int64_t at = first; at < first + count; at += kChunk) {
            const int64_t length = std::min(kChunk, first + count - at);
            append_places(row.read(at, length, buffer), length, at, score, tied_left, to);
        }
    };
    if (left != boundary.tied || row.threads == 1 || row.n < kParallelScores) {
        append(0, row.n, &left, places);  // tied scores that are left over are counted off in order
        return places;
    }
    const int64_t size = row.block_size();
    std::vector<std::vector<int64_t>> pieces(size_t((row.n + size - 1) / size));
    row.each_block([&](int64_t block, int64_t first, int64_t count) {
        int64_t all = left;
        append(first, count, &all, pieces[size_t(block)]);
    });
    for (const std::vector<int64_t>& piece : pieces)
        places.insert(places.end(), piece.begin(), piece.end());
    return places;
}

// A list of scores as a row.
template <class T>
Row<T> row_of(const std::vector<T>& scores) {
    Row<T> row;
    row.scores = {reinterpret_cast<char*>(const_cast<T*>(scores.data())), 1,
                  sizeof(T) == 8 ? int64_t(kFloat64) : int64_t(kFloat32)};
    row.n = int64_t(scores.size());
    return row;
}

// Places and weights of the k selected scores, -1 and 0 in what is left of `count`; -1 and NaN in a
// row without an answer.
template <class T>
void write_selection(const Row<T>& row, const Solution& solution, int64_t k, double t, bool sorted,
                     int64_t count, int64_t* indices, const Strided& weights) {
    Row<T> all;
    all.n = count;
    std::fill(indices, indices + count, -1);
    if (std::isnan(solution.threshold.hi))
        return fill(all, weights, std::numeric_limits<T>::quiet_NaN());
    std::vector<int64_t> places = places_of(row, solution.hard, k);
    std::vector<T> scores(places.size());
    if (sorted) {
        std::vector<std::pair<T, int64_t>> pairs(places.size());
        for (size_t i = 0; i < places.size(); ++i)
            pairs[i] = {row.read_one_score(places[i]), places[i]};
        std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) {
            return a.first > b.first || (a.first == b.first && a.second < b.second);
        });
        for (size_t i = 0; i < places.size(); ++i) {
            scores[i] = pairs[i].first;
            places[i] = pairs[i].second;
        }
    } else {
        for (size_t i = 0; i < places.size(); ++i) scores[i] = row.read_one_score(places[i]);
    }
    std::copy(places.begin(), places.end(), indices);
    if (k < count) fill(all, weights, T(0));
    write_mask(row_of(scores), solution.threshold, t, weights);
}

// The gradient of <g, weights>, which is that of the mask with g at the selected places and 0
// elsewhere; no row of such g is made.
template <class T>
RowGradient write_selection_gradient(Row<T>& row, const int64_t* indices, int64_t count,
                                     const Strided& grad, const Threshold& threshold, double t,
                                     const Strided& out) {
    std::vector<int64_t> places;
    std::vector<T> scores, grads;
    for (int64_t i = 0; i < count; ++i) {
        if (indices[i] < 0) continue;
        places.push_back(indices[i]);
        scores.push_back(row.read_one_score(indices[i]));
        grads.push_back(read_one<T>(grad, i));
    }
    const Row<T> selected = row_of(scores);
    const auto sums_at = [&](const Scale<T>& at) {
        GradientSums sums = row.template reduce<GradientSums>(
            [&](int64_t, const T* r, int64_t n) { return gradient_sums_chunk(r, zeros<T>(), n, at); });
        const GradientSums of_grads =
            selected.template reduce<GradientSums>([&](int64_t first, const T* r, int64_t n) {
                return gradient_sums_chunk(r, grads.data() + first, n, at);
            });
        sums.ge = of_grads.ge;
        sums.gue = of_grads.gue;
        return sums;
    };
    const auto write = [&](const Scale<T>& scale, T factor, T mean) {
        write_row(row, out, [&](const T* r, int64_t n, T* to) {
            gradient_chunk(r, zeros<T>(), n, scale, factor, mean, to);
        });
        std::vector<T> values(scores.size());
        for (size_t at = 0; at < values.size(); at += size_t(kChunk)) {
            const auto n = int64_t(std::min(size_t(kChunk), values.size() - at));
            gradient_chunk(scores.data() + at, grads.data() + at, n, scale, factor, mean,
                           values.data() + at);
        }
        for (size_t i = 0; i < places.size(); ++i) {
            T value;
            T* target = write_target(out, places[i], &value);
            *target = values[i];
            write_chunk(out, places[i], 1, target);
        }
    };
    return gradient_of_mask(row, threshold, t, out, sums_at, write);
}

}  // namespace
