// One reading of a row that keeps the scores of a band, and what it comes to outside of it.

#pragma once

#include "counts.hpp"
#include "rows.hpp"

namespace {

// The scores in [lower, upper], gathered in their order, and chunk_sums(scores, count) of the
// others, which counts those `above` and `below`. `inside` is how many there are; false if they are
// more than `most`, or if the row holds a NaN.
template <class Sums, class T, class ChunkSums>
bool gather_band(Row<T>& row, T lower, T upper, int64_t most, ChunkSums chunk_sums, Sums* outside,
                 int64_t* inside, std::vector<T>& band) {
    struct Piece {
        int64_t found = 0;
        std::vector<T> scores;
    };
    ++row.passes;
    const int64_t size = row.block_size(), blocks = (row.n + size - 1) / size;
    // One block needs no list of them, which would cost as much as a hundred scores.
    Sums only_sums;
    Piece only_piece;
    std::vector<Sums> many_sums(blocks > 1 ? size_t(blocks) : 0);
    std::vector<Piece> many_pieces(blocks > 1 ? size_t(blocks) : 0);
    Sums* sums = blocks > 1 ? many_sums.data() : &only_sums;
    Piece* pieces = blocks > 1 ? many_pieces.data() : &only_piece;
    row.each_block([&](int64_t block, int64_t first, int64_t count) {
        alignas(64) T buffer[kChunk];
        alignas(64) T kept[kChunk + kSlack];
        Piece& piece = pieces[block];
        Cascade<Sums> block_sums;
        for (int64_t at = 0; at < count; at += kChunk) {
            const int64_t length = std::min(kChunk, count - at);
            const T* r = row.read(first + at, length, buffer);
            const Sums chunk = chunk_sums(r, length);
            block_sums.add(chunk);
            if (chunk.above + chunk.below == length) continue;
            const int64_t hits = gather_chunk(r, length, lower, upper, kept);
            piece.found += hits;
            if (piece.found <= most)
                piece.scores.insert(piece.scores.end(), kept, kept + hits);
        }
        sums[block] = block_sums.total();
    });
    *outside = sum_in_pairs(sums, blocks);
    *inside = 0;
    for (int64_t i = 0; i < blocks; ++i) *inside += pieces[i].found;
    if (outside->above + outside->below + *inside != row.n || *inside > most) return false;
    band = std::move(pieces[0].scores);
    band.reserve(size_t(*inside));
    for (int64_t i = 1; i < blocks; ++i)
        band.insert(band.end(), pieces[i].scores.begin(), pieces[i].scores.end());
    return true;
}

}  // namespace
