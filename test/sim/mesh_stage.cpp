#include "mesh_parts.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <chrono>

namespace verbena::sim::meshes {

using namespace std::chrono_literals;

Shape shape_of(Random& random) {
  Shape shape;
  mesh::Options& options = shape.options;
  options.device = "soft";
  options.job = "simulated";
  options.processes = static_cast<unsigned>(random.between(2, kMostProcesses));
  options.threads = static_cast<unsigned>(random.between(1, 2));
  options.message_bytes = random.one_in(3) ? random.between(kHeadBytes, 64) : random.between(64, 2000);
  options.depth = static_cast<unsigned>(random.one_in(2) ? random.between(4, 8) : random.between(4, 40));
  options.operations = static_cast<unsigned>(random.one_in(2) ? random.between(1, 4) : random.between(4, 40));
  options.reservations = static_cast<unsigned>(random.one_in(4) ? 0 : random.between(1, 8));
  if (random.one_in(2)) options.batch = static_cast<unsigned>(random.between(1, std::min(options.operations, 32U)));
  // Not kSpin: whoever spins through the retries of a NIC takes more steps than a run may have.
  options.wait = random.one_in(2) ? WaitPolicy::kAdaptive : WaitPolicy::kEvent;
  options.spin = std::chrono::microseconds(random.between(0, 20));
  options.join_timeout = std::chrono::milliseconds(random.one_in(4) ? random.between(20, 500) : 10'000);
  shape.steps = 500 / (options.processes * options.threads);
  shape.has_task_per_lane = random.one_in(2);
  shape.are_early = random.one_in(4);
  shape.come_back = !random.one_in(5);
  shape.gathers = static_cast<unsigned>(random.one_in(2) ? 0 : random.between(1, 12));
  shape.carrier_fails = random.one_in(2) ? 0 : random.between(2, 10);
  shape.faults = draw_faults(random, options.processes - 1);
  for (Fault& fault : shape.faults)
    if (is_cut(fault.kind) && random.one_in(8)) fault.time = random.between(500 * kMs, 3000 * kMs);
  return shape;
}

void fill(std::span<std::byte> bytes, std::uint64_t number) {
  Random random(number);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

bool is_filled(std::span<const std::byte> bytes, std::uint64_t number) {
  std::vector<std::byte> expected(bytes.size());
  fill(expected, number);
  return std::ranges::equal(bytes, expected);
}

void Stage::fail(std::string why) {
  if (tasks_.is_winding_down()) return;
  tell("WRONG: {}", why);
  fail_(std::move(why));
}

Life& Stage::add_life(unsigned id) {
  Life& life = lives_.emplace_back();
  life.number = static_cast<unsigned>(lives_.size() - 1);
  life.id = id;
  life.began = now();
  // Whoever does not find all others leaves those that it has found.
  life.may_leave = now() + static_cast<Nanoseconds>(std::chrono::nanoseconds(shape_.options.join_timeout).count());
  latest_[id] = &life;
  return life;
}

unsigned Stage::count_gone(unsigned id) const noexcept {
  return static_cast<unsigned>(
      std::ranges::count_if(lives_, [&](const Life& life) { return life.id == id && life.is_gone(now()); }));
}

bool Stage::has_said_goodbye(unsigned id) const noexcept {
  return std::ranges::any_of(lives_, [&](const Life& life) { return life.id == id && life.may_have_left(now()); });
}

Life* Stage::owner_of(std::uint64_t address) noexcept {
  for (Life& life : lives_) {
    const auto first = reinterpret_cast<std::uintptr_t>(life.memory.data());
    if (!life.memory.empty() && address >= first && address < first + life.memory.size()) return &life;
  }
  return nullptr;
}

std::uint64_t Stage::begin_post(Post post) {
  post.place = accepted(post.life, post.lane, post.to).size();
  posts_.push_back(post);
  return posts_.size();
}

void Stage::end_post(std::uint64_t number, Status status) {
  Post& post = posts_[number - 1];
  post.is_refused = status != Status::kOk;
  if (!post.is_refused) return accepted_[{post.life, post.lane, post.to}].push_back(number);
  if (post.is_taken) fail(fmt::format("post {} arrived, and its call returned {}", number, to_string(status)));
}

Post* Stage::find_post(std::uint64_t number) noexcept {
  return number == 0 || number > posts_.size() ? nullptr : &posts_[number - 1];
}

unsigned Stage::cuts(unsigned one, unsigned other, Nanoseconds least) const {
  return static_cast<unsigned>(std::ranges::count_if(shape_.faults, [&](const Fault& fault) {
    const unsigned parted = other_of(fault, processes());
    const bool is_between = (fault.process == one && parted == other) || (fault.process == other && parted == one);
    return is_cut(fault.kind) && is_between && fault.time >= least && faults_begin_ + fault.at <= now();
  }));
}

bool Stage::is_calm() const {
  return std::ranges::none_of(shape_.faults, [this](const Fault& fault) { return faults_begin_ + fault.at <= now(); });
}

bool Stage::is_undisturbed(const Life& life) const {
  if (!is_calm() || shape_.carrier_fails != 0) return false;
  // Two attempts of which none has ended begin together, and each pauses for 200 ms at most.
  return now() - life.began > 450 * kMs;
}

void Stage::check_time(const Life& life, const char* call, Nanoseconds begin, Nanoseconds due, Nanoseconds slack) {
  ++calls;
  const Nanoseconds late = now() > due ? now() - due : 0;
  if (late > slack + lost_since(begin))
    fail(fmt::format("process {}: {} returned {} us past its deadline", life.id, call, late / kUs));
}

// --- the carrier --------------------------------------------------------------------------------------------------

namespace {

class SimulatedCarrier final : public mesh::Carrier {
 public:
  explicit SimulatedCarrier(Stage& stage) noexcept : stage_(stage) {}
  Result<void> publish(unsigned id, const mesh::Blob& blob, Deadline /*deadline*/) override {
    if (is_bad()) stage_.sleep(stage_.random().between(kUs, 2 * kMs));
    if (is_bad()) {
      stage_.latest(id)->may_leave = stage_.now();
      return verbena::fail(Status::kSystem, "SimulatedCarrier::publish", 0, "the carrier fails");
    }
    stage_.blobs[id].push_back(blob);
    return {};
  }
  Result<mesh::Blob> find(unsigned id) override {
    const std::vector<mesh::Blob>& known = stage_.blobs[id];
    if (known.empty()) return verbena::fail(Status::kAgain, "SimulatedCarrier::find", 0, "not known yet");
    if (!is_bad()) return known.back();
    switch (stage_.random().below(4)) {
      case 0: return verbena::fail(Status::kAgain, "SimulatedCarrier::find", 0, "the carrier is late");
      case 1: return verbena::fail(Status::kSystem, "SimulatedCarrier::find", 0, "the carrier fails");
      case 2: stage_.sleep(stage_.random().between(kUs, 2 * kMs)); return known.back();
      default: return known[stage_.random().below(known.size())];
    }
  }

 private:
  [[nodiscard]] bool is_bad() {
    return stage_.shape().carrier_fails != 0 && stage_.random().one_in(stage_.shape().carrier_fails);
  }

  Stage& stage_;
};

}  // namespace

std::unique_ptr<mesh::Carrier> make_carrier(Stage& stage) { return std::make_unique<SimulatedCarrier>(stage); }

}  // namespace verbena::sim::meshes
