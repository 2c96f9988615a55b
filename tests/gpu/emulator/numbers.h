// The floating-point types of 16 and 8 bits. They are widened to binary32, and rounded from it once, to nearest, ties
// to even.
#pragma once

#include <bit>
#include <cstdint>

namespace emulator {

// bfloat16: the upper half of a binary32.
struct BFloat {
  uint16_t bits;

  BFloat() = default;
  explicit BFloat(float value) {
    const auto wide = std::bit_cast<uint32_t>(value);
    const bool is_nan = (wide & 0x7fff'ffff) > 0x7f80'0000;
    bits = static_cast<uint16_t>(is_nan ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

// binary16.
struct Half {
  uint16_t bits;

  Half() = default;
  explicit Half(float value) {
    constexpr uint32_t INFINITE = 0x7f80'0000, TOO_LARGE = 0x477f'f000, NORMAL = 0x3880'0000;
    const auto wide = std::bit_cast<uint32_t>(value);
    const uint32_t sign = wide >> 16 & 0x8000;
    const uint32_t size = wide & 0x7fff'ffff;
    uint32_t narrow;
    if (size > INFINITE) {
      narrow = 0x7fff;
    } else if (size >= TOO_LARGE) {
      narrow = 0x7c00;
    } else if (size >= NORMAL) {
      narrow = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    } else {
      // Around 0.5, the spacing of binary32 equals that of the subnormal numbers of binary16, so the addition
      // rounds.
      narrow = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
    }
    bits = static_cast<uint16_t>(sign | narrow);
  }
  operator float() const {
    const uint32_t sign = uint32_t{bits} << 16 & 0x8000'0000;
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    uint32_t size = (exponent + 112) << 23 | fraction << 13;
    if (exponent == 0) size = std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
    if (exponent == 31) size = 0x7f80'0000 | fraction << 13;
    return std::bit_cast<float>(sign | size);
  }
};

// e4m3fn: bias 7, no infinities. Operands only.
struct E4m3 {
  uint8_t bits;

  E4m3() = default;
  explicit E4m3(float) = delete;
  operator float() const {
    const uint32_t exponent = bits >> 3 & 15, fraction = bits & 7;
    uint32_t size = (exponent + 120) << 23 | fraction << 20;
    if (exponent == 0) size = std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-9f);
    if (exponent == 15 && fraction == 7) size = 0x7fc0'0000;
    return std::bit_cast<float>(size | uint32_t{bits} << 24 & 0x8000'0000);
  }
};

}  // namespace emulator
