// The processes of the scenario `mesh`, and what they share: all posts, all lives, and who owns which memory. One
// thread runs all processes, so a receiver looks at what its sender wrote down.
#pragma once

#include "run.hpp"

#include <verbena/mesh.hpp>

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbena::sim::meshes {

inline constexpr unsigned kMostProcesses = 5;
/// Lives of one process in a run, at most.
inline constexpr unsigned kMostLives = 12;
/// Lanes of all lives that write into others' memory.
inline constexpr unsigned kMostWriters = 48;

// Memory of a life: a counter, a word of each writer, bytes that nobody changes, and a slice of each writer.
inline constexpr std::size_t kWordsAt = 64;
inline constexpr std::size_t kConstantsAt = 1024;
inline constexpr std::size_t kSlicesAt = 4096;
inline constexpr std::size_t kPlainBytes = 512;
inline constexpr unsigned kPlainSlots = 4;
inline constexpr std::size_t kNoticeBytes = 64;
inline constexpr unsigned kNoticeSlots = 32;
inline constexpr std::size_t kSliceBytes = kPlainSlots * kPlainBytes + kNoticeSlots * kNoticeBytes;
inline constexpr std::size_t kScratchAt = kSlicesAt + kMostWriters * kSliceBytes;
inline constexpr std::size_t kScratchBytes = 8192;
inline constexpr std::size_t kMemoryBytes = kScratchAt + kScratchBytes;
/// Later than all runs.
inline constexpr Nanoseconds kNever = Nanoseconds{1} << 60;
/// In front of each message: the number of its post.
inline constexpr std::size_t kHeadBytes = sizeof(std::uint64_t);

/// What the seed makes of a run.
struct Shape {
  unsigned steps = 100;            ///< Of each lane.
  bool has_task_per_lane = false;  ///< Else one task drives all lanes of a process.
  bool are_early = false;          ///< Faults come while the processes join.
  bool come_back = true;           ///< Killed and ended processes.
  unsigned gathers = 0;
  std::uint64_t carrier_fails = 0;  ///< One call in so many; 0: none.
  mesh::Options options;
  std::vector<Fault> faults;
};
[[nodiscard]] Shape shape_of(Random& random);

/// Whom a cut parts its process from.
[[nodiscard]] inline unsigned other_of(const Fault& fault, unsigned processes) noexcept {
  return static_cast<unsigned>((fault.process + 1 + fault.at % (processes - 1)) % processes);
}

/// Bytes that belong to a number.
void fill(std::span<std::byte> bytes, std::uint64_t number);
[[nodiscard]] bool is_filled(std::span<const std::byte> bytes, std::uint64_t number);

/// A message, or a write with an immediate.
struct Post {
  unsigned life = 0;
  unsigned lane = 0;
  unsigned to = 0;          ///< Process.
  std::uint64_t place = 0;  ///< Among those of this life, lane and receiver that were accepted.
  std::uint64_t epoch = 0;  ///< Which connection of the sender's, where it knows; else 0.
  std::size_t length = 0;
  std::optional<std::uint32_t> immediate{};
  bool is_write = false;
  bool is_refused = false;
  bool is_taken = false;
};

class Driver;

/// One attempt of a process to join, and what follows.
struct Life {
  unsigned number = 0;
  unsigned id = 0;
  Nanoseconds began = 0;
  Nanoseconds joined = 0;     ///< 0: not yet.
  Nanoseconds may_leave = 0;  ///< From when on others may hear that it has left; 0: not at all.
  Nanoseconds killed = 0;
  std::span<std::byte> memory;  ///< Empty before there is some, and once it is gone.
  std::uint64_t adds_started = 0;
  std::uint64_t adds_done = 0;
  std::vector<char> olds;  ///< Which values an add has found.
  unsigned rounds = 0;     ///< Gathers that it has called, or that were called before it came.
  bool is_gathering = false;
  std::vector<Driver*> drivers;  ///< Of its lanes, while it is joined.
  [[nodiscard]] bool may_have_left(Nanoseconds now) const noexcept { return may_leave != 0 && may_leave <= now; }
  [[nodiscard]] bool is_gone(Nanoseconds now) const noexcept { return killed != 0 || may_have_left(now); }
};

class Stage {
 public:
  Stage(Tasks& tasks, Shape shape, std::function<void(std::string)> fail)
      : tasks_(tasks), shape_(std::move(shape)), fail_(std::move(fail)) {
    latest_.fill(nullptr);
  }
  [[nodiscard]] Tasks& tasks() noexcept { return tasks_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] unsigned processes() const noexcept { return shape_.options.processes; }
  [[nodiscard]] Nanoseconds now() const noexcept { return tasks_.now(); }
  [[nodiscard]] Random& random() noexcept { return tasks_.world().random(); }
  void sleep(Nanoseconds time) { (void)tasks_.sleep(&idle_, now() + time); }
  void fail(std::string why);
  template <class... Facts>
  void tell(fmt::format_string<Facts...> text, Facts&&... facts) {
    tasks_.world().tell(text, std::forward<Facts>(facts)...);
  }

  Life& add_life(unsigned id);
  [[nodiscard]] Life* latest(unsigned id) const noexcept { return latest_[id]; }
  [[nodiscard]] Life& life(unsigned number) noexcept { return lives_[number]; }
  /// Lives of a process that others may have lost.
  [[nodiscard]] unsigned count_gone(unsigned id) const noexcept;
  /// Whether the process has joined, and is there.
  [[nodiscard]] bool lives(unsigned id) const noexcept {
    return latest_[id] != nullptr && latest_[id]->joined != 0 && !latest_[id]->is_gone(now());
  }
  [[nodiscard]] bool has_said_goodbye(unsigned id) const noexcept;
  /// Whose memory this is; null: nobody's that is still there.
  [[nodiscard]] Life* owner_of(std::uint64_t address) noexcept;
  /// A number for a lane that writes into others' memory; none are left: kMostWriters.
  [[nodiscard]] unsigned next_writer() noexcept { return writers_ < kMostWriters ? writers_++ : kMostWriters; }

  std::uint64_t begin_post(Post post);
  void end_post(std::uint64_t number, Status status);
  [[nodiscard]] Post* find_post(std::uint64_t number) noexcept;
  /// Posts that were accepted, in their order.
  [[nodiscard]] const std::vector<std::uint64_t>& accepted(unsigned life, unsigned lane, unsigned to) {
    return accepted_[{life, lane, to}];
  }

  // --- what happens to the processes
  void set_begin(Nanoseconds begin) noexcept { faults_begin_ = begin; }
  /// Time that faults may have taken from whoever has called since then.
  [[nodiscard]] Nanoseconds lost_since(Nanoseconds begin) const {
    return sim::lost_since(shape_.faults, faults_begin_, begin, now());
  }
  /// Cuts between two processes that have begun, and last so long at least.
  [[nodiscard]] unsigned cuts(unsigned one, unsigned other, Nanoseconds least) const;
  /// Whether nothing has happened to anybody yet.
  [[nodiscard]] bool is_calm() const;
  /// Whether others had all the time that a join may take, and nothing was in the way of any.
  [[nodiscard]] bool is_undisturbed(const Life& life) const;
  /// A call with a deadline has returned.
  void check_time(const Life& life, const char* call, Nanoseconds begin, Nanoseconds due, Nanoseconds slack);

  std::map<unsigned, std::vector<mesh::Blob>> blobs;  ///< By process, all that it has published.
  bool is_quiet = false;                              ///< Nothing new is begun.
  bool is_ending = false;
  unsigned round = 0;                                            ///< Gathers that all are to call.
  std::map<std::pair<unsigned, unsigned>, std::uint64_t> given;  ///< By round and process.
  unsigned gathered = 0;                                         ///< Calls of the last round that returned kOk.
  std::uint64_t calls = 0;

 private:
  Tasks& tasks_;
  const Shape shape_;
  std::function<void(std::string)> fail_;
  std::deque<Life> lives_;
  std::array<Life*, kMostProcesses> latest_;
  std::deque<Post> posts_;
  std::map<std::array<unsigned, 3>, std::vector<std::uint64_t>> accepted_;
  unsigned writers_ = 0;
  Nanoseconds faults_begin_ = kNever;
  char idle_ = 0;
};

/// What all processes see; at times it is late, fails, or brings an older blob.
[[nodiscard]] std::unique_ptr<mesh::Carrier> make_carrier(Stage& stage);

/// What one lane of a life does, and what comes of it.
class Driver {
 public:
  Driver(Stage& stage, Life& life, mesh::Lane& lane, std::uint64_t seed);
  /// One step, and what is left to take. Nothing is begun any more once the stage is quiet.
  void turn();
  [[nodiscard]] std::string_view state() const noexcept { return state_; }
  [[nodiscard]] bool has_worked() const noexcept { return steps_ == 0; }
  /// Everything has ended, and everybody is here.
  [[nodiscard]] bool is_settled() const;
  /// Why not, in words.
  [[nodiscard]] std::string unsettled() const;
  /// A post of the connection with a peer that has not arrived, in words; or nothing.
  [[nodiscard]] std::string missing(unsigned peer) const;

 private:
  using Kind = mesh::Completion::Kind;
  struct Operation {
    Kind kind = Kind::kSend;
    unsigned peer = 0;
    std::uint64_t epoch = 0;
    Life* at = nullptr;       ///< Whose memory.
    std::size_t offset = 0;   ///< There.
    std::uint64_t value = 0;  ///< What its bytes are filled with; what a swap expects.
    std::vector<std::byte> bytes{};
    std::span<std::byte> place{};  ///< In this process.
    bool is_swap = false;
    bool is_post = false;  ///< Its bytes are a post's.
  };
  /// The connection with a peer, as far as completions have told.
  struct Link {
    std::uint64_t epoch = 0;  ///< How many there were.
    bool is_here = false;
    bool was_used = false;
    bool has_failed = false;  ///< An operation of this connection has.
    unsigned lefts = 0;
    std::optional<unsigned> sender{};  ///< Life.
    std::uint64_t next = 0;            ///< Place of its next post.
    std::optional<mesh::Window> window{};
    std::optional<mesh::Window> old_window{};  ///< Of an earlier connection.
  };
  /// What this lane has written into one life's memory.
  struct Written {
    std::array<bool, kPlainSlots> is_busy{};
    unsigned notices = 0;
    std::uint64_t word = 0;
    bool is_word_busy = false;
    bool is_word_known = true;  ///< Else it may be one more.
  };
  void step();
  void send(unsigned peer);
  void send_in_place(unsigned peer);
  void write(unsigned peer);
  void write_with_immediate(unsigned peer);
  void read(unsigned peer);
  void add(unsigned peer);
  void swap(unsigned peer);
  void find(unsigned peer);
  void wait();
  void gather();
  void drain();
  void settle();
  void release_one();
  void burst(unsigned peer);
  void use_what_is_over(unsigned peer);
  [[nodiscard]] std::uint64_t begin_post(unsigned peer, std::size_t length, std::optional<std::uint32_t> immediate,
                                         bool is_write);
  [[nodiscard]] std::optional<std::uint32_t> draw_immediate();
  /// Adds an operation before its call: its cookie.
  std::uint64_t begin(Operation operation);
  /// What its call has returned.
  void started(std::uint64_t cookie, Status status);
  [[nodiscard]] std::span<std::byte> place_for(Operation& operation, std::size_t length);
  [[nodiscard]] Life* owner(unsigned peer);
  void on_completion(const mesh::Completion& completion);
  void on_end(const mesh::Completion& completion);
  void check_effect(const Operation& operation, const mesh::Completion& completion);
  void on_arrival(const mesh::Completion& completion);
  void on_joined(unsigned peer);
  void on_left(const mesh::Completion& completion);
  void check_cause(const mesh::Completion& completion);
  void fail(std::string why);

  Stage& stage_;
  Life& life_;
  mesh::Lane& lane_;
  Random random_;
  const unsigned writer_;
  const bool keeps_all_;  ///< Messages, as long as there is work: what is sent to it waits for credit.
  std::string_view state_ = "a call";
  unsigned steps_ = 0;
  bool is_current_ = false;  ///< Everything was taken: which connections there are is known.
  std::uint64_t cookie_ = 0;
  std::map<std::uint64_t, Operation> operations_;
  std::vector<Link> links_;
  std::vector<mesh::Completion> kept_;
  std::array<mesh::Completion, 32> over_{};  ///< Messages that were released.
  std::size_t over_next_ = 0;
  std::map<unsigned, Written> written_;               // By life.
  std::map<unsigned, std::uint64_t> next_of_sender_;  // By life: the least place that may still come.
};

}  // namespace verbena::sim::meshes
