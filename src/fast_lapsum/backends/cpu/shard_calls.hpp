// Calls on a rank's part of rows that are spread over many.

#pragma once

#include "each_row.hpp"
#include "shard_measure.hpp"

// Laid out as shards.py packs it. All pointers are to contiguous [rows, ...].
struct MeasureCall {
    Call call;
    int64_t pivot_count, size, capacity;
    const double *low, *high, *pivots;
    const uint8_t* is_open;
    double* columns;  // [rows, kColumns + 2 pivot_count]
    char* nodes;      // [rows, size] in the dtype of the scores
    // The last band that was read, where its scores fit: they are in `kept`, so many of them, or -1.
    char* kept;             // [rows, capacity] in the compute dtype
    int64_t* kept_count;    // [rows]
    double* kept_columns;   // [rows, 2 + kColumns]: its ends, and what is outside
};

struct WriteCall {
    Call call;
    const double* pairs;  // [rows, 2]
    const double *boundary, *quota;  // of hard masks
    const uint8_t* is_far;           // rows whose masks keep every digit
};

struct SampleNodesCall {
    Call call;
    int64_t size, drawn;
    const int64_t* places;  // [drawn], of the scores that are drawn of every row; null for all
    char* nodes;            // [rows, size] in the dtype of the scores
};

struct GradientCall {
    Call call;
    double* sums;         // [rows, 7], see shards.py
    const double* level;  // [rows]
};

namespace {

// Where the nodes of row i of a message are; fill(nodes) gets them as T.
template <class T, class Fill>
void write_nodes(const Call& call, char* nodes, int64_t i, int64_t size, Fill fill) {
    const Strided to{nodes + i * size * width(call.dtype), 1, call.dtype};
    std::vector<T> buffer(is_native<T>(call.dtype) ? 0 : size_t(size));
    T* target = write_target(to, 0, buffer.data());
    fill(target);
    write_chunk(to, 0, size, target);
}

// Quantiles of the scores that are drawn of each row.
template <class T>
void sample_rows(const SampleNodesCall& given) {
    each_row(given.call, kDear, [&](const Call& call, const RowIndex& index, int) {
        const Row<T> row = make_row<T>(call, index, 1);
        std::vector<T> drawn(static_cast<size_t>(given.drawn));
        const auto place = [&](int64_t i) { return given.places == nullptr ? i : given.places[i]; };
        const auto* scores = reinterpret_cast<const T*>(row.scores.data);
        const bool is_plain = is_native<T>(call.dtype) && row.mask == nullptr && row.largest;
        for (int64_t i = 0; i < given.drawn; ++i) {
            drawn[size_t(i)] = is_plain ? scores[place(i) * row.scores.stride]
                                        : row.read_one_score(place(i));
        }
        sort_descending(drawn);
        write_nodes<T>(call, given.nodes, index.flat, given.size, [&](T* nodes) {
            quantiles(drawn.data(), given.drawn, given.size, nodes);
        });
    });
}

template <class T>
void measure_rows(const MeasureCall& given) {
    const int64_t columns = kColumns + 2 * given.pivot_count;
    each_row(given.call, kDear, [&](const Call& call, const RowIndex& index, int threads) {
        const int64_t i = index.flat;
        double* own_columns = given.columns + i * columns;
        const auto write = [&](const auto& fill) {
            write_nodes<T>(call, given.nodes, i, given.size, fill);
        };
        if (!given.is_open[i]) {
            std::fill_n(own_columns, columns, 0.0);
            return write([&](T* nodes) { quantiles<T>(nullptr, 0, given.size, nodes); });
        }
        const double low = given.low[i], high = given.high[i];
        const double t = divisible_temperature<T>(index.temperature(call));
        T* kept = reinterpret_cast<T*>(given.kept) + i * given.capacity;
        double* known = given.kept_columns + i * (2 + kColumns);
        ReadBand<T> band;
        int64_t& count = given.kept_count[i];
        if (count >= 0 && known[0] <= low && high <= known[1]) {
            band.low = known[0];
            band.high = known[1];
            std::copy_n(known + 2, kColumns, band.columns);
            band.inside.assign(kept, kept + count);
        } else {
            Row<T> row = make_row<T>(call, index, threads);
            read_band(row, low, high, t, &band);
            const auto inside = int64_t(band.inside.size());
            count = inside <= given.capacity ? inside : -1;
            if (count >= 0) std::copy_n(band.inside.data(), count, kept);
            known[0] = low;
            known[1] = high;
            std::copy_n(band.columns, kColumns, known + 2);
        }
        write([&](T* nodes) {
            measure_band(band, low, high, t, given.pivots + i * given.pivot_count,
                         given.pivot_count, given.size, own_columns, nodes);
        });
    });
}

// Masks and hard masks at thresholds that are known, as doubles.
template <class T>
void write_rows(const WriteCall& given) {
    ask_for_large_pages(given.call);
    each_row_at_hand(
        given.call, kDear, [&](const Call& call, const RowIndex& index, int threads) {
            const int64_t i = index.flat;
            const Row<T> row = make_row<T>(call, index, threads);
            const Strided out = index.strided(call.out, call.out_dtype);
            const double t = index.temperature(call);
            Threshold threshold{given.pairs[2 * i], given.pairs[2 * i + 1], false,
                                given.is_far[i] != 0};
            threshold.is_hard =
                t < double(std::numeric_limits<T>::min()) || threshold.hi == kInfinity;
            if (call.output != kHardMask) return write_mask(row, threshold, t, out);
            const double boundary = given.boundary[i], quota = given.quota[i];
            if (std::isnan(boundary))
                return fill(row, out, std::numeric_limits<T>::quiet_NaN());
            // One more than the quota, so that it is not the mask of nothing.
            write_hard_mask(row, Boundary{boundary, 1, -1}, quota + 1, out);
        });
}

// This rank's sums for the gradients of masks, relative to its own nearest score where those at the
// threshold have lost their digits.
template <class T>
void mask_gradient_sums(const GradientCall& given) {
    constexpr int64_t kSums = 7;
    each_row_at_hand(
        given.call, kCheap, [&](const Call& call, const RowIndex& index, int threads) {
            double* to = given.sums + kSums * index.flat;
            std::fill_n(to, kSums, 0.0);
            to[0] = kInfinity;  // no score takes part
            Row<T> row = make_row<T>(call, index, threads);
            const double t = index.temperature(call);
            const Threshold threshold = kept_threshold<T>(call, index, t);
            if (std::isnan(threshold.hi) || threshold.is_hard || row.n == 0) return;
            const Strided grad = index.strided(call.grad, call.grad_dtype);
            const auto sums_at = [&](const Scale<T>& at) {
                return row.template reduce<GradientSums>([&](int64_t first, const T* r, int64_t n) {
                    alignas(64) T buffer[kChunk];
                    return gradient_sums_chunk(r, read_chunk(grad, first, n, buffer), n, at);
                });
            };
            GradientSums sums = sums_at(Scale<T>(threshold.hi, threshold.lo, t));
            double shift = 0;
            if (!(sums.e >= kDensity)) {
                Sides sides = sides_of(row, threshold, t);
                shift = sides.shift;
                if (!(shift < kInfinity)) return;
                sums = sums_by_sides<T>(&sides, t, false, std::exp(-shift) > 0, sums_at);
            }
            to[0] = shift;
            to[1] = sums.e;
            to[2] = kLn2 * sums.ue;
            to[3] = sums.ge;
            to[4] = kLn2 * sums.gue;
        });
}

// phi / t (g - <g, q>), where <g, q> is of the whole row.
template <class T>
void write_mask_gradient(const GradientCall& given) {
    ask_for_large_pages(given.call);
    each_row_at_hand(
        given.call, kCheap, [&](const Call& call, const RowIndex& index, int threads) {
            Row<T> row = make_row<T>(call, index, threads);
            const double t = index.temperature(call);
            const Threshold threshold = kept_threshold<T>(call, index, t);
            const Strided grad = index.strided(call.grad, call.grad_dtype),
                          out = index.strided(call.out, call.out_dtype);
            if (std::isnan(threshold.hi))
                return fill(row, out, std::numeric_limits<T>::quiet_NaN());
            if (threshold.is_hard) return fill(row, out, T(0));
            const Scale<T> scale(threshold.hi, threshold.lo, t);
            write_mask_gradient_at(row, grad, scale, T((row.largest ? 0.5 : -0.5) / t),
                                   T(given.level[index.flat]), out);
        });
}

}  // namespace
