// What attention works in: the states of rows that are joined span by span, and each thread's room.

#pragma once
#include "attention_plan.h"

namespace noria::NORIA_LEVEL {
namespace {

// States of some rows: [rows] and [rows][width].
struct States {
  float *most, *weight, *output;
  static States take(Carver& carver, int64_t rows, int64_t width) {
    return {carver.take<float>(rows), carver.take<float>(rows), carver.take<float>(rows * width)};
  }
  States from(int64_t row, int64_t width) const { return {most + row, weight + row, output + row * width}; }
};

// What a thread works in.
struct Workspace {
  Packed packed;
  void* queries;
  void* weights;
  float *scores, *tile;
  States total, stretch;
  static Workspace take(Carver& carver, const Step& step) {
    const int64_t rows = step.rows_max(), width = step.width(), words = step.words();
    Workspace made;
    made.packed = {carver.take<int32_t>(SPAN * words), carver.take<int32_t>(SPAN * words), carver.take<float>(SPAN),
                   carver.take<float>(SPAN), words};
    made.queries = carver.take<float>(rows * width);
    made.weights = carver.take<float>(TILE_ROWS * SPAN);
    made.scores = carver.take<float>(TILE_ROWS * SPAN);
    made.tile = carver.take<float>(TILE_ROWS * width);
    made.total = States::take(carver, rows, width);
    made.stretch = States::take(carver, rows, width);
    return made;
  }
};

}  // namespace
}  // namespace noria::NORIA_LEVEL
