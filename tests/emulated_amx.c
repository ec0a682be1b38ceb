/* AMX as Intel's manual describes it, for CPUs that have none: eight tiles of a thread, which abort where a CPU would
   raise a fault (a tile that is not configured, or shapes that do not fit). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static __thread uint8_t tiles[8][16][64];
static __thread uint8_t rows[8];
static __thread int configured;

static void check(int tile) {
  if (!configured || tile < 0 || tile > 7) abort();
}

static void check_product(int sums, int data, int weights) {
  check(sums), check(data), check(weights);
  if (rows[sums] != rows[data] || rows[weights] != 16) abort();
}

int32_t tunehub_amx_begin(int64_t each) {
  for (int tile = 0; tile < 8; tile++) {
    rows[tile] = (each >> (8 * tile)) & 255;
    if (rows[tile] < 1 || rows[tile] > 16) abort();
  }
  memset(tiles, 0, sizeof tiles);
  configured = 1;
  return 0;
}

void emulated_tilerelease(void) { configured = 0; }

void emulated_tilezero(int8_t tile) {
  check(tile);
  memset(tiles[tile], 0, sizeof tiles[tile]);
}

void emulated_tileloadd64(int8_t tile, const uint8_t *from, int64_t stride) {
  emulated_tilezero(tile);
  for (int row = 0; row < rows[tile]; row++) memcpy(tiles[tile][row], from + row * stride, 64);
}

void emulated_tilestored64(int8_t tile, uint8_t *to, int64_t stride) {
  check(tile);
  for (int row = 0; row < rows[tile]; row++) memcpy(to + row * stride, tiles[tile][row], 64);
}

static float widened(uint16_t number) {
  uint32_t bits = (uint32_t)number << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

void emulated_tdpbf16ps(int8_t sums, int8_t data, int8_t weights) {
  check_product(sums, data, weights);
  for (int row = 0; row < rows[sums]; row++)
    for (int group = 0; group < 16; group++)
      for (int lane = 0; lane < 16; lane++)
        for (int item = 0; item < 2; item++)
          ((float *)tiles[sums][row])[lane] += widened(((uint16_t *)tiles[data][row])[2 * group + item]) *
                                               widened(((uint16_t *)tiles[weights][group])[2 * lane + item]);
}

void emulated_tdpbusd(int8_t sums, int8_t data, int8_t weights) {
  check_product(sums, data, weights);
  for (int row = 0; row < rows[sums]; row++)
    for (int group = 0; group < 16; group++)
      for (int lane = 0; lane < 16; lane++)
        for (int item = 0; item < 4; item++)
          ((int32_t *)tiles[sums][row])[lane] +=
              (int32_t)tiles[data][row][4 * group + item] * (int32_t)((int8_t *)tiles[weights][group])[4 * lane + item];
}
