#include "process.hpp"

#include "sim_nic.hpp"

#include "base/check.hpp"

#include <cstring>
#include <new>

namespace verbena::sim {

namespace {
constexpr std::align_val_t kPageAlign{4096};
}  // namespace

const char* to_string(Mutant mutant) noexcept {
  switch (mutant) {
    case Mutant::kNone: return "none";
    case Mutant::kWriteBehind: return "write_behind";
    case Mutant::kNoAccessCheck: return "no_access_check";
    case Mutant::kFlushBackwards: return "flush_backwards";
    case Mutant::kRnrCounted: return "rnr_counted";
    case Mutant::kKeyNotRotated: return "key_not_rotated";
  }
  return "unknown";
}

// --- Process ----------------------------------------------------------------------------------------------------

void Process::Freed::operator()(std::byte* memory) const noexcept { ::operator delete[](memory, kPageAlign); }

Process::Process(Network& network, std::uint32_t number, std::string name)
    : network_(network), number_(number), name_(std::move(name)) {}

Process::~Process() { VERBENA_CHECK(nics_.empty()); }

void Process::change(State to, const char* what) {
  state_ = to;
  network_.world().note({number_, static_cast<std::uint64_t>(to), incarnation_});
  network_.world().tell("{} {}", name_, what);
}

void Process::stop() {
  VERBENA_CHECK(state_ == State::kRunning);
  change(State::kStopped, "stands still");
}

void Process::resume() {
  VERBENA_CHECK(state_ == State::kStopped);
  change(State::kRunning, "runs again");
}

void Process::kill() {
  VERBENA_CHECK(state_ != State::kDead);
  change(State::kDead, "is killed");
  for (SimNic* nic : nics_) nic->die();
}

void Process::restart(Memory memory) {
  VERBENA_CHECK(state_ == State::kDead);
  if (memory == Memory::kEmpty) memories_.clear();
  ++incarnation_;
  change(State::kRunning, memory == Memory::kEmpty ? "starts anew, with empty memory" : "starts anew, with its memory");
}

std::span<std::byte> Process::memory(const std::string& name, std::size_t bytes) {
  Mapped& mapped = memories_[name];
  if (mapped.bytes == nullptr) {
    mapped.bytes.reset(static_cast<std::byte*>(::operator new[](bytes, kPageAlign)));
    mapped.size = bytes;
    std::memset(mapped.bytes.get(), 0, bytes);
  }
  VERBENA_CHECK(mapped.size == bytes);
  return {mapped.bytes.get(), mapped.size};
}

// --- Network ----------------------------------------------------------------------------------------------------

Process& Network::add_process(std::string name) {
  const auto number = static_cast<std::uint32_t>(processes_.size() + 1);
  return *processes_.emplace_back(std::make_unique<Process>(*this, number, std::move(name)));
}

void Network::cut(const Process& from, const Process& to) {
  cuts_.insert({from.number(), to.number()});
  world_.note({from.number(), to.number(), 1});
  world_.tell("{} is not heard by {} any more", from.name(), to.name());
}

void Network::cut_both_ways(const Process& one, const Process& other) {
  cut(one, other);
  cut(other, one);
}

void Network::heal(const Process& from, const Process& to) {
  cuts_.erase({from.number(), to.number()});
  world_.note({from.number(), to.number(), 0});
  world_.tell("{} is heard by {} again", from.name(), to.name());
}

void Network::join(SimNic& nic) {
  const ibv_gid& gid = nic.gid();
  nics_[{gid.global.subnet_prefix, gid.global.interface_id}] = &nic;
}

void Network::leave(const SimNic& nic) {
  const ibv_gid& gid = nic.gid();
  nics_.erase({gid.global.subnet_prefix, gid.global.interface_id});
}

SimNic* Network::find(const ibv_gid& gid) const noexcept {
  const auto at = nics_.find({gid.global.subnet_prefix, gid.global.interface_id});
  return at == nics_.end() ? nullptr : at->second;
}

}  // namespace verbena::sim
