// Simulated processes, and the network between them.
#pragma once

#include "world.hpp"

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace verbena::sim {

class SimNic;
class Network;

/// Who polls and waits as one of several tasks, where there is a scheduler.
class Turns {
 public:
  /// Whether a task calls.
  [[nodiscard]] virtual bool is_task() const noexcept = 0;
  /// Time that it spends by computing.
  virtual void spend(Nanoseconds time) noexcept = 0;
  /// A place where others may go on.
  virtual void pause() = 0;
  /// Waits until somebody wakes `what`: true; or until a time of the world's clock: false.
  virtual bool sleep(const void* what, Nanoseconds until) = 0;
  virtual void wake(const void* what) = 0;

 protected:
  ~Turns() = default;
};

/// A mistake that the simulated NIC makes on purpose. The suites have to find each of them.
enum class Mutant : std::uint8_t {
  kNone,
  kWriteBehind,    ///< A WRITE does not hold up what comes after it: a later SEND is received before its data is there.
  kNoAccessCheck,  ///< Remote access rights of a key are not looked at.
  kFlushBackwards,  ///< What an error leaves is flushed from the last to the first.
  kRnrCounted,      ///< An rnr_retry of 7 is taken for a number instead of "for ever".
  kKeyNotRotated,   ///< A window's key is compared without its low byte, so that keys of earlier bindings stay valid.
};
inline constexpr std::size_t kMutants = 6;
[[nodiscard]] const char* to_string(Mutant mutant) noexcept;

/// A process as its peers see it: it runs, or stands still, or is gone. Its NIC is hardware: while the process is
/// stopped, peers go on reading and writing its memory, and messages go on filling its receives.
class Process {
 public:
  enum class State : std::uint8_t { kRunning, kStopped, kDead };
  /// What a new incarnation finds of the memory that `memory` gave to the one before.
  enum class Memory : std::uint8_t { kEmpty, kKept };

  Process(Network& network, std::uint32_t number, std::string name);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  void stop();
  void resume();
  /// Its NIC goes with it: no peer gets an answer, and nobody reads or writes its memory any more.
  void kill();
  /// Runs again, as a new incarnation without a NIC.
  void restart(Memory memory);

  /// NICs that it opens from now on offer what needs no queue (nic::Direct).
  void work_directly() noexcept { works_directly_ = true; }
  [[nodiscard]] bool works_directly() const noexcept { return works_directly_; }

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] std::uint32_t incarnation() const noexcept { return incarnation_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] Network& network() const noexcept { return network_; }
  /// Page-aligned memory by name: made, of zeroes, at the first call, and the same one after that.
  [[nodiscard]] std::span<std::byte> memory(const std::string& name, std::size_t bytes);

  // For its NICs.
  void join(SimNic& nic) { nics_.push_back(&nic); }
  void leave(const SimNic& nic) { std::erase(nics_, &nic); }
  [[nodiscard]] bool has_nics() const noexcept { return !nics_.empty(); }
  /// Not given out before by any incarnation, so that late packets find nobody.
  [[nodiscard]] std::uint32_t next_qp_number() noexcept { return qp_number_++; }

 private:
  struct Freed {
    void operator()(std::byte* memory) const noexcept;
  };
  struct Mapped {
    std::unique_ptr<std::byte, Freed> bytes;
    std::size_t size = 0;
  };
  void change(State to, const char* what);

  Network& network_;
  std::uint32_t number_;
  std::string name_;
  State state_ = State::kRunning;
  std::uint32_t incarnation_ = 0;
  bool works_directly_ = false;
  std::uint32_t qp_number_ = 17;  // 0 and 1 are the fabric's own.
  std::vector<SimNic*> nics_;
  std::map<std::string, Mapped> memories_;
};

/// Everything of one simulation: its world, its processes, and who hears whom.
class Network {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::FILE* story = nullptr;
    Mutant mutant = Mutant::kNone;
    /// Each poll lets the next event happen, so that programs that wait by polling need no scheduler.
    bool polls_pass_time = true;
    /// One packet in so many is lost; 0: none.
    std::uint64_t lost_one_in = 0;
  };
  explicit Network(const Options& options) noexcept : options_(options), world_(options.seed, options.story) {}
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  [[nodiscard]] World& world() noexcept { return world_; }
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] bool is(Mutant mutant) const noexcept { return options_.mutant == mutant; }
  [[nodiscard]] Process& add_process(std::string name);
  /// Null: the programs themselves let time pass.
  void set_turns(Turns* turns) noexcept { turns_ = turns; }
  /// Of the task that calls; null: none does.
  [[nodiscard]] Turns* turns() const noexcept { return turns_ != nullptr && turns_->is_task() ? turns_ : nullptr; }
  /// Whoever sleeps on `what` goes on.
  void wake(const void* what) {
    if (turns_ != nullptr) turns_->wake(what);
  }
  [[nodiscard]] std::size_t processes() const noexcept { return processes_.size(); }

  /// From now on nothing that `from` sends reaches `to`: not what is on its way either.
  void cut(const Process& from, const Process& to);
  void cut_both_ways(const Process& one, const Process& other);
  void heal(const Process& from, const Process& to);
  /// From now on one packet in so many is lost; 0: none.
  void lose(std::uint64_t one_in) noexcept { options_.lost_one_in = one_in; }
  [[nodiscard]] bool reaches(std::uint32_t from, std::uint32_t to) const noexcept {
    return !cuts_.contains({from, to});
  }

  /// A NIC was closed with objects in it.
  void count_leak() noexcept { ++leaks_; }
  [[nodiscard]] unsigned leaks() const noexcept { return leaks_; }

  /// NICs by the address that peers are told.
  void join(SimNic& nic);
  void leave(const SimNic& nic);
  [[nodiscard]] SimNic* find(const ibv_gid& gid) const noexcept;

 private:
  Options options_;
  World world_;
  Turns* turns_ = nullptr;
  unsigned leaks_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> cuts_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, SimNic*> nics_;  // By the two halves of the GID.
};

}  // namespace verbena::sim
