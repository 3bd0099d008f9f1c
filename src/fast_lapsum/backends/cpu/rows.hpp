// Rows: how the scores of a row are read (any stride, dtype, mask, side) and reduced. Blocks of a
// row are added up in their order: the same input gives the same bits, whatever the number of
// threads.

#pragma once

#include <vector>

#include "simd.hpp"
#include "threads.hpp"

namespace {

enum Dtype : int64_t { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBfloat16 = 3 };

constexpr int64_t kChunk = 2048;        // scores that one inner loop sees; fits the L1 cache
constexpr int64_t kBlock = 4 * kChunk;  // the least that one thread takes at a time
constexpr int64_t kSlack = 16;          // a gathered vector may be written past its end
constexpr int64_t kMostBlocks = 1024;   // partial results are kept per block

struct Parts;

// A strided vector of any supported dtype, or several one after the other.
struct Strided {
    char* data = nullptr;
    int64_t stride = 0;  // in elements
    int64_t dtype = kFloat32;
    const Parts* parts = nullptr;  // in place of all of these
};

// Vectors that are read and written as if they were one.
struct Parts {
    std::vector<Strided> vectors;
    std::vector<int64_t> firsts{0};  // the place of each one's first score, and the end

    void add(const Strided& vector, int64_t n) {
        vectors.push_back(vector);
        firsts.push_back(firsts.back() + n);
    }

    // The vector that holds place i.
    size_t find(int64_t i) const {
        return size_t(std::upper_bound(firsts.begin(), firsts.end(), i) - firsts.begin() - 1);
    }

    // work(vector, first in it, count, how many before) for the pieces of n scores from `first` on.
    template <class Work>
    void each_piece(int64_t first, int64_t n, Work work) const {
        size_t part = find(first);
        for (int64_t done = 0; done < n; ++part) {
            const int64_t at = first + done - firsts[part],
                          count = std::min(n - done, firsts[part + 1] - first - done);
            if (count > 0) work(vectors[part], at, count, done);
            done += std::max<int64_t>(count, 0);
        }
    }

    // The vector that holds a whole chunk from `first` on, or null.
    const Strided* holder(int64_t first, int64_t n) const {
        const size_t part = find(first);
        return first + n <= firsts[part + 1] ? &vectors[part] : nullptr;
    }

    int64_t inside(int64_t first) const { return first - firsts[find(first)]; }
};

LAPSUM_INLINE int64_t width(int64_t dtype) {
    return dtype == kFloat64 ? 8 : dtype == kFloat32 ? 4 : 2;
}

template <class T>
bool is_native(int64_t dtype) {
    return dtype == (sizeof(T) == 8 ? kFloat64 : kFloat32);
}

template <class T>
T read_one(const Strided& v, int64_t i) {
    if (v.parts != nullptr) return read_one<T>(*v.parts->holder(i, 1), v.parts->inside(i));
    const char* at = v.data + i * v.stride * width(v.dtype);
    switch (v.dtype) {
        case kFloat64:
            return T(*reinterpret_cast<const double*>(at));
        case kFloat32:
            return T(*reinterpret_cast<const float*>(at));
        case kFloat16:
            return T(half_to_float(*reinterpret_cast<const uint16_t*>(at)));
        default:
            return T(bfloat_to_float(*reinterpret_cast<const uint16_t*>(at)));
    }
}

// n elements from `first` on as contiguous T: in place where they already are, else into `buffer`.
template <class T>
const T* read_chunk(const Strided& v, int64_t first, int64_t n, T* buffer) {
    if (v.parts != nullptr && n > 0) {
        const Strided* whole = v.parts->holder(first, n);
        if (whole != nullptr) return read_chunk(*whole, v.parts->inside(first), n, buffer);
        v.parts->each_piece(first, n, [&](const Strided& part, int64_t at, int64_t count,
                                          int64_t done) {
            const T* from = read_chunk(part, at, count, buffer + done);
            if (from != buffer + done) std::copy_n(from, count, buffer + done);
        });
        return buffer;
    }
    if (is_native<T>(v.dtype) && v.stride == 1) return reinterpret_cast<const T*>(v.data) + first;
    if (v.stride == 1 && width(v.dtype) == 2 && sizeof(T) == 4) {
        const auto* in = reinterpret_cast<const uint16_t*>(v.data) + first;
        auto* out = reinterpret_cast<float*>(buffer);
        v.dtype == kFloat16 ? widen_half(in, n, out) : widen_bfloat(in, n, out);
        return buffer;
    }
    for (int64_t i = 0; i < n; ++i) buffer[i] = read_one<T>(v, first + i);
    return buffer;
}

// Where chunk results of T are to be written: the row itself where it is contiguous T.
template <class T>
T* write_target(const Strided& v, int64_t first, T* buffer) {
    if (v.parts != nullptr) {
        const Strided* whole = v.parts->holder(first, kChunk);
        return whole == nullptr ? buffer : write_target(*whole, v.parts->inside(first), buffer);
    }
    const bool direct = is_native<T>(v.dtype) && v.stride == 1;
    return direct ? reinterpret_cast<T*>(v.data) + first : buffer;
}

template <class T>
void write_chunk(const Strided& v, int64_t first, int64_t n, const T* values) {
    if (v.parts != nullptr) {
        const Strided* whole = v.parts->holder(first, kChunk);
        if (whole != nullptr) return write_chunk(*whole, v.parts->inside(first), n, values);
        v.parts->each_piece(first, n, [&](const Strided& part, int64_t at, int64_t count,
                                          int64_t done) {
            T* to = write_target(part, at, static_cast<T*>(nullptr));
            if (to != nullptr) std::copy_n(values + done, count, to);
            write_chunk(part, at, count, values + done);
        });
        return;
    }
    if (is_native<T>(v.dtype) && v.stride == 1) return;  // written in place
    if (sizeof(T) == 4 && v.stride == 1 && width(v.dtype) == 2) {
        const auto* in = reinterpret_cast<const float*>(values);
        auto* out = reinterpret_cast<uint16_t*>(v.data) + first;
        v.dtype == kFloat16 ? narrow_half(in, n, out) : narrow_bfloat(in, n, out);
        return;
    }
    char* at = v.data + first * v.stride * width(v.dtype);
    const int64_t step = v.stride * width(v.dtype);
    for (int64_t i = 0; i < n; ++i, at += step) {
        switch (v.dtype) {
            case kFloat64:
                *reinterpret_cast<double*>(at) = double(values[i]);
                break;
            case kFloat32:
                *reinterpret_cast<float*>(at) = float(values[i]);
                break;
            case kFloat16:
                *reinterpret_cast<uint16_t*>(at) = float_to_half(float(values[i]));
                break;
            default:
                *reinterpret_cast<uint16_t*>(at) = float_to_bfloat(float(values[i]));
        }
    }
}

// The scores of one row: where they lie, which of them take part, which side is selected.
template <class T>
struct Row {
    Strided scores;
    const uint8_t* mask = nullptr;
    int64_t mask_stride = 0;
    bool largest = true;
    int64_t n = 0;
    int threads = 1;
    int most_passes =
        std::numeric_limits<int>::max();  // the tests lower it to reach the last resort
    int passes = 0;

    const T* read(int64_t first, int64_t count, T* buffer) const {
        const T* in = read_chunk(scores, first, count, buffer);
        if (mask == nullptr && largest) return in;
        const T sign = largest ? T(1) : T(-1);
        if (mask == nullptr) {
            turn(in, count, buffer);
        } else if (mask_stride == 1) {
            leave_out(in, mask + first, count, sign, buffer);
        } else {
            const uint8_t* keep = mask + first * mask_stride;
            for (int64_t i = 0; i < count; ++i) {
                buffer[i] =
                    keep[i * mask_stride] ? sign * in[i] : -std::numeric_limits<T>::infinity();
            }
        }
        return buffer;
    }

    T read_one_score(int64_t i) const {
        if (mask != nullptr && !mask[i * mask_stride]) return -std::numeric_limits<T>::infinity();
        const T value = read_one<T>(scores, i);
        return largest ? value : -value;
    }

    int64_t block_size() const {
        const int64_t share = (n + kMostBlocks - 1) / kMostBlocks;
        return std::max(kBlock, (share + kChunk - 1) / kChunk * kChunk);
    }

    // work(block, first, count) for every block, the blocks spread over the row's threads.
    template <class Work>
    void each_block(Work work) const {
        const int64_t size = block_size(), blocks = (n + size - 1) / size;
        const auto one = [&](int64_t block) {
            work(block, block * size, std::min(size, n - block * size));
        };
#ifdef _OPENMP
        if (threads > 1 && n >= kParallelScores && !g_is_forked) {
#pragma omp parallel for schedule(static) num_threads(threads)
            for (int64_t block = 0; block < blocks; ++block) one(block);
            return;  // the plain loop below enters no parallel region, which would cost more than
                     // it
        }
#endif
        for (int64_t block = 0; block < blocks; ++block) one(block);
    }

    // Sum of chunk_result(first, scores, count) over the row, in an order that the shape fixes.
    template <class Result, class Chunk>
    Result reduce(Chunk chunk_result) const {
        const auto block_result = [&](int64_t first, int64_t count) {
            alignas(64) T buffer[kChunk];
            Cascade<Result> sum;
            for (int64_t at = 0; at < count; at += kChunk) {
                const int64_t length = std::min(kChunk, count - at);
                sum.add(chunk_result(first + at, read(first + at, length, buffer), length));
            }
            return sum.total();
        };
        if (n <= kChunk) {
            alignas(64) T buffer[kChunk];
            return chunk_result(0, read(0, n, buffer), n);
        }
        const int64_t blocks = (n + block_size() - 1) / block_size();
        if (blocks == 1) return block_result(0, n);
        std::vector<Result> partial(static_cast<size_t>(blocks));
        each_block([&](int64_t block, int64_t first, int64_t count) {
            partial[size_t(block)] = block_result(first, count);
        });
        return sum_in_pairs(partial.data(), blocks);
    }

    // Full passes, counted: no row takes more than kMostPasses.
    Pass pass(T b, T inverse) {
        ++passes;
        return reduce<Pass>(
            [=](int64_t, const T* r, int64_t count) { return pass_chunk(r, count, b, inverse); });
    }

    Tails tails(T under, T over, T anchor_below, T anchor_above, T inverse) {
        ++passes;
        return reduce<Tails>([=](int64_t, const T* r, int64_t count) {
            return tails_chunk(r, count, under, over, anchor_below, anchor_above, inverse);
        });
    }

    Survey survey(T origin) {
        ++passes;
        return reduce<Survey>(
            [=](int64_t, const T* r, int64_t count) { return survey_chunk(r, count, origin); });
    }
};

// A short contiguous list of scores, with what is known of the scores outside [lower, upper].
template <class T>
struct Band {
    const T* scores;
    int64_t n;
    Tails outside;
    T lower, upper;
    double t;

    Pass pass(T b, T inverse) const {
        Cascade<Pass> chunks;
        for (int64_t at = 0; at < n; at += kChunk)
            chunks.add(pass_chunk(scores + at, std::min(kChunk, n - at), b, inverse));
        Pass sum = chunks.total();
        double farthest = 0;  // the tails' spread is not kept by side: take the larger factor
        if (outside.above > 0) {
            const double v = (double(upper) - double(b)) * (kLog2E / t), factor = std::exp2(-v);
            sum.above += outside.above;
            sum.sum_above += outside.sum_above * factor;
            sum.spread += factor > 0 ? outside.sum_above * v * factor : 0;
            farthest = factor;
            sum.nearest_above = std::min(sum.nearest_above, double(upper));
        }
        if (outside.below > 0) {
            const double v = (double(b) - double(lower)) * (kLog2E / t), factor = std::exp2(-v);
            sum.sum_below += outside.sum_below * factor;
            sum.spread += factor > 0 ? outside.sum_below * v * factor : 0;
            farthest = std::max(farthest, factor);
            sum.nearest_below = std::max(sum.nearest_below, double(lower));
        }
        sum.spread += outside.spread * farthest;
        return sum;
    }

    Tails tails(T under, T over, T anchor_below, T anchor_above, T inverse) const {
        Cascade<Tails> chunks;
        for (int64_t at = 0; at < n; at += kChunk) {
            const int64_t count = std::min(kChunk, n - at);
            chunks.add(
                tails_chunk(scores + at, count, under, over, anchor_below, anchor_above, inverse));
        }
        Tails sum = chunks.total();
        sum.above += outside.above;
        if (outside.above > 0)
            sum.sum_above +=
                outside.sum_above * std::exp((double(anchor_above) - double(upper)) / t);
        if (outside.below > 0)
            sum.sum_below +=
                outside.sum_below * std::exp((double(lower) - double(anchor_below)) / t);
        return sum;
    }
};

}  // namespace
