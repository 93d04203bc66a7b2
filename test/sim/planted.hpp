// One mistake of src/, made on purpose: the simulation has to find it. mutate.py writes the sources that can make it.
#pragma once

#include <cstdint>
#include <string_view>

namespace verbena::sim {

/// Mistakes are known by name, and compared as numbers: each place that can make one asks each time.
[[nodiscard]] constexpr std::uint64_t number_of(std::string_view name) noexcept {
  std::uint64_t number = 0xcbf2'9ce4'8422'2325;  // FNV-1a
  for (const char letter : name) number = (number ^ static_cast<unsigned char>(letter)) * 0x100'0000'01b3;
  return number;
}

class Mistake {
 public:
  consteval Mistake(const char* name) noexcept : number_(number_of(name)) {}  // NOLINT: a name is one.
  [[nodiscard]] constexpr std::uint64_t number() const noexcept { return number_; }

 private:
  std::uint64_t number_;
};

/// The mistake that is made; 0: none.
inline constinit std::uint64_t planted = 0;

[[nodiscard]] inline bool is_planted(Mistake mistake) noexcept { return planted == mistake.number(); }

}  // namespace verbena::sim
