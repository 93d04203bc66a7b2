#include "nic/soft/chaos.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

namespace verbena::nic::soft {
namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint32_t kMostPolls = 16;
constexpr std::uint32_t kMostNaks = 3;

struct Rate {
  std::string_view name;
  double ChaosOptions::* value;
};
constexpr std::array<Rate, 9> kRates{{{"delay", &ChaosOptions::delay},
                                      {"pieces", &ChaosOptions::pieces},
                                      {"hold", &ChaosOptions::hold},
                                      {"rnr", &ChaosOptions::rnr},
                                      {"retry", &ChaosOptions::retry},
                                      {"fatal", &ChaosOptions::fatal},
                                      {"death", &ChaosOptions::death},
                                      {"control", &ChaosOptions::control},
                                      {"cut", &ChaosOptions::cut}}};

template <class Number>
Result<Number> number_of(std::string_view name, std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size()) return number;
  return fail(Status::kBadArgument, "VERBENA_CHAOS", 0, "'{}' is not a value of {}", text, name);
}

Result<void> parse_setting(std::string_view setting, ChaosOptions& options) {
  const std::size_t equals = setting.find('=');
  const std::string_view name = setting.substr(0, equals);
  const std::string_view value = equals == setting.npos ? std::string_view{} : setting.substr(equals + 1);
  if (name == "seed") {
    VERBENA_ASSIGN(options.seed, number_of<std::uint64_t>(name, value));
    return {};
  }
  const auto rate = std::ranges::find(kRates, name, &Rate::name);
  if (rate == kRates.end()) {
    return fail(
        Status::kBadArgument, "VERBENA_CHAOS", 0,
        "'{}' is not one of seed, delay, pieces, hold, rnr, retry, fatal, death, control, cut (as in delay=0.2,seed=7)",
        name);
  }
  VERBENA_ASSIGN(options.*rate->value, number_of<double>(name, value));
  return {};
}

}  // namespace

Result<void> check_chaos(const ChaosOptions& options) {
  for (const Rate& rate : kRates) {
    const double value = options.*rate.value;
    if (value >= 0 && value <= 1) continue;  // False for NaN.
    return fail(Status::kBadArgument, "ChaosOptions", 0, "{} is {}: a rate is 0 to 1", rate.name, value);
  }
  return {};
}

Result<ChaosOptions> parse_chaos(std::string_view text) {
  ChaosOptions options;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    VERBENA_TRY(parse_setting(text.substr(0, comma), options));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  VERBENA_TRY(check_chaos(options));
  return options;
}

Result<std::optional<ChaosOptions>> chaos_of_environment() {
  const char* const text = std::getenv("VERBENA_CHAOS");
  if (text == nullptr) return std::nullopt;
  VERBENA_ASSIGN(ChaosOptions options, parse_chaos(text));
  if (const char* const seed = std::getenv("VERBENA_CHAOS_SEED"); seed != nullptr) {
    VERBENA_ASSIGN(options.seed, number_of<std::uint64_t>("VERBENA_CHAOS_SEED", seed));
  }
  return options;
}

void Pieces::begin(std::uint64_t address, std::uint64_t bytes, Dice& dice) noexcept {
  bytes_ = bytes;
  skew_ = address % kLine;
  const std::uint64_t span = skew_ + bytes;
  const std::uint64_t lines = (span + kLine - 1) / kLine;
  piece_bytes_ = (lines + kMost - 1) / kMost * kLine;
  count_ = static_cast<std::uint32_t>((span + piece_bytes_ - 1) / piece_bytes_);
  next_ = 0;
  for (std::uint32_t i = 0; i < count_; ++i) order_[i] = static_cast<std::uint16_t>(i);
  for (std::uint32_t i = count_; i > 1; --i) std::swap(order_[i - 1], order_[dice.below(i)]);  // Fisher and Yates.
}

Pieces::Piece Pieces::take() noexcept {
  const std::uint64_t first = order_[next_++] * piece_bytes_;
  const std::uint64_t from = std::max(first, skew_), to = std::min(first + piece_bytes_, skew_ + bytes_);
  return {from - skew_, static_cast<std::size_t>(to - from)};
}

void QpChaos::draw(bool takes_receive, bool is_rdma, std::uint64_t bytes, unsigned rnr_retry) noexcept {
  is_drawn = true;
  has_begun = false;
  fate = {};
  if (dice.hits(options.death)) {
    fate.end = Fate::End::kDeath;
  } else if (dice.hits(options.fatal)) {
    fate.end = Fate::End::kFatal;
  } else if (dice.hits(options.retry)) {
    fate.end = is_rdma && dice.below(2) == 0 ? Fate::End::kRetryLate : Fate::End::kRetry;
  } else if (takes_receive && dice.hits(options.rnr)) {
    const unsigned naks = 1 + dice.below(kMostNaks);
    if (rnr_retry != 7 && naks > rnr_retry) fate.end = Fate::End::kRnrRetry;
    fate.polls += naks * 4;
  }
  if (dice.hits(options.delay)) fate.polls += 1 + dice.below(kMostPolls);
  fate.in_pieces = is_rdma && bytes > kLine && dice.hits(options.pieces);
}

bool CqChaos::keeps_back(std::uint64_t head) noexcept {
  if (decided != head) {
    decided = head;
    polls = dice.hits(rate) ? 1 + dice.below(kMostPolls) : 0;
  }
  if (polls == 0) return false;
  --polls;
  return true;
}

}  // namespace verbena::nic::soft
