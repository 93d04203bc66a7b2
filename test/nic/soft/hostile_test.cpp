// What another user's process can do to this one: nothing but lose its own connection.
//
// The other process is this executable again, under uid 65534. It speaks the rendezvous protocol by hand (raw_peer.hpp)
// and writes what it likes into the memory that is its own to write.
#include "other_process.hpp"
#include "raw_peer.hpp"

#include "nic/soft/soft_nic.hpp"
#include "process.hpp"
#include "stuck_file.hpp"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace verbena::nic::soft {
namespace {

using namespace std::chrono_literals;
using Post = conformance::Request;
using conformance::Side;
using conformance::SideOptions;
using WireRequest = soft::Request;

constexpr uid_t kStranger = 65534;
constexpr SideOptions kHostileOptions{
    .send_depth = 32, .recv_depth = 32, .cqe = 128, .arena_bytes = std::size_t{64} << 10};

enum class Act : std::uint32_t {
  kGreet,        ///< Hello. `answer` is what came.
  kDescriptors,  ///< Everything that a process can try on the descriptors it gets. `memory` names the arenas.
  kOffer,        ///< A whole hand-made peer with the lie `lie`.
  kPush,         ///< Offers of many QPs to somebody's queue pair, and one in the name of `victim`.
  kFlood,        ///< Connections, half messages, long messages.
  kLend,         ///< Answers one request for memory as `lent` says. `count`: the pages that it has then.
  kKeepAsking,   ///< Requests over the last offer's connection, until the owner says a word. `memory`: Flood, arena.
};

enum class Lie : std::uint32_t {
  kNone,
  // Geometry and descriptors.
  kNoEntries,
  kOddSlots,
  kHugeData,
  kSmallFile,
  kUnsealed,
  kSparse,     ///< Its pages are made by whoever reads them first.
  kPunchable,  ///< They are there, and may go again.
  kOddStart,
  kNotMemory,
  // Slots.
  kUnknownKind,
  kLongInSlot,
  kFarPosition,
  kNotFirst,
  kOpenWriteImm,
  kEmptySegments,
  kTwiceFirst,
  // Counters.
  kCounters,
  kAlwaysInside,
  // Events.
  kBrokenPipe,
  kFlippingAsk,  ///< What it asks of the service thread changes while it is read. `memory`: address, key.
  // Handshake.
  kTwoFaced,  ///< Offers, and refuses the offer that it gets.
  kLends,     ///< No lie; it has keys of kLentKeys memories, to lend.
  kGarbage,   ///< And beyond: random words in the slots, a seed each.
};

/// Memory that the stranger lends.
struct Lent {
  std::size_t bytes = 0;
  bool is_whole = false;
  bool is_kept = false;  ///< Sealed so that its pages stay.
  bool is_writable = false;
};
/// The stranger's memories, and the indices of their keys: the first half may be read, the others also written. Each
/// begins at the address kLentAddress.
constexpr std::uint32_t kLentKeys = 8;
constexpr std::uint64_t kLentAddress = 1 << 20;
constexpr std::uint32_t lent_key(std::uint32_t number) { return kRemoteKeyBit | number << 8 | 1; }

/// What a peer that keeps asking asks.
enum class Flood : std::uint64_t { kTakes, kAllKinds, kConnections };

struct Command {
  Act act{};
  Lie lie{};
  Introduction owner;
  QpAddress victim;
  std::array<std::uint64_t, 3> memory{};  ///< Lease, read-only arena, not granted, unless the lie says otherwise.
  Lent lent{};
};

struct Outcome {
  bool good = true;
  Answer answer = Answer::kOk;
  std::uint32_t count = 0;
  QpAddress address;
  char text[128] = "";

  void expect(bool met, const char* what) {
    if (met || !good) return;
    good = false;
    std::snprintf(text, sizeof text, "%s (errno %d)", what, errno);
  }
};

// --- the stranger -----------------------------------------------------------------------------------------------

/// What no peer may do to a descriptor that it was handed.
void attack_descriptor(Outcome& outcome, int fd, std::size_t size, bool writable) {
  outcome.expect(::ftruncate(fd, 0) != 0, "ftruncate shrank it");
  outcome.expect(::ftruncate(fd, static_cast<off_t>(size) * 2) != 0, "ftruncate grew it");
  outcome.expect(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0, "could seal it");
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const Fd again(::open(path, O_RDWR | O_CLOEXEC));
  for (const int one : {fd, again.get()}) {
    if (one < 0) continue;
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, one, 0);
    if (!writable) {
      outcome.expect(data == MAP_FAILED, "mapped read-only memory writable");
      void* read = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, one, 0);
      outcome.expect(read != MAP_FAILED, "could not map it at all");
      if (read != MAP_FAILED) {
        outcome.expect(::mprotect(read, size, PROT_READ | PROT_WRITE) != 0, "mprotect made it writable");
        ::munmap(read, size);
      }
      const char byte = 1;
      outcome.expect(::pwrite(one, &byte, 1, 0) != 1, "wrote into it");
    }
    if (data != MAP_FAILED) ::munmap(data, size);
    const bool punched = ::fallocate(one, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size)) == 0;
    outcome.expect(!punched || writable, "punched a hole into read-only memory");
  }
}

void try_descriptors(Outcome& outcome, const Command& command) {
  RawClient client;
  Reply reply;
  Fds fds;
  outcome.expect(client.connect(command.owner.address.gid) && client.hello({}, reply, fds), "hello");
  outcome.expect(reply.answer == Answer::kOk, "was refused");
  // The key table alone: another user's process does not get the ready set.
  outcome.expect(fds.count == 1 && reply.size == 0, "got more than the key table");
  attack_descriptor(outcome, fds.fds[0].get(), reply.key_entries * sizeof(KeyEntry), false);
  const auto ask = [&](std::uint64_t id) {
    WireRequest request;
    request.type = RequestType::kMemory;
    request.memory_id = id;
    outcome.expect(client.ask(request, {}, reply, fds), "no answer");
    return reply.answer;
  };
  outcome.expect(ask(command.memory[0]) == Answer::kOk && fds.count == 1 && reply.writable == 1, "lease");
  attack_descriptor(outcome, fds.fds[0].get(), reply.size, true);
  outcome.expect(ask(command.memory[1]) == Answer::kOk && fds.count == 1 && reply.writable == 0, "read-only arena");
  attack_descriptor(outcome, fds.fds[0].get(), reply.size, false);
  outcome.expect(ask(command.memory[2]) == Answer::kNotGranted && fds.count == 0, "got what is not granted");
  outcome.expect(ask(12345) == Answer::kUnknown && fds.count == 0, "got what is not there");
  outcome.expect(ask(~std::uint64_t{0}) == Answer::kUnknown && fds.count == 0, "got what is not there");
}

/// The memory of a hand-made QP.
struct RawQp {
  QpGeometry geometry{.receive_entries = 32, .slots = 32, .data_bytes = 4 * kSegmentBytes, .reserved = 0, .start = 0};
  Fd file;
  std::byte* data = nullptr;
  std::size_t size = 0;

  [[nodiscard]] QpControl& control() const { return *reinterpret_cast<QpControl*>(data); }
  [[nodiscard]] Slot& slot(std::uint64_t index) const {
    return reinterpret_cast<Slot*>(data + geometry.slots_offset())[index % geometry.slots];
  }
  void publish(std::uint64_t index, unsigned kind, unsigned flags, std::uint32_t length, std::uint64_t position) const {
    Slot& at = slot(index);
    std::memcpy(at.payload, &position, sizeof position);
    at.details.store(details_of({.length = length}));
    at.header.store(static_cast<std::uint32_t>(index + 1) | (std::uint64_t{kind} << 32) | (std::uint64_t{flags} << 40),
                    std::memory_order_release);
  }
};

RawQp make_raw_qp(Outcome& outcome, Lie lie) {
  RawQp qp;
  qp.size = qp.geometry.total_bytes();
  qp.file = make_memfd(lie == Lie::kSmallFile ? 4096 : qp.size, 0);
  void* data = ::mmap(nullptr, qp.size, PROT_READ | PROT_WRITE, MAP_SHARED, qp.file.get(), 0);
  outcome.expect(data != MAP_FAILED, "mmap");
  qp.data = static_cast<std::byte*>(data);
  if (lie != Lie::kSparse && lie != Lie::kSmallFile) std::memset(qp.data, 0, qp.size);
  const int seals = lie == Lie::kPunchable ? kKeptSeals & ~F_SEAL_FUTURE_WRITE : kKeptSeals;
  outcome.expect(lie == Lie::kUnsealed || ::fcntl(qp.file.get(), F_ADD_SEALS, seals) == 0, "seals");
  qp.control().rare.readiness.store(Readiness::kReady);
  qp.control().rare.min_receive.store(~0U);
  if (lie == Lie::kNotMemory) {
    int ends[2];
    outcome.expect(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
    qp.file = Fd(ends[0]);
    ::close(ends[1]);
  }
  if (lie == Lie::kNoEntries) qp.geometry.receive_entries = 0;
  if (lie == Lie::kOddSlots) qp.geometry.slots = 31;
  if (lie == Lie::kHugeData) qp.geometry.data_bytes = 1U << 31;
  if (lie == Lie::kOddStart) qp.geometry.start = 5;
  return qp;
}

/// What the QP says once the owner has it mapped.
void tell_lie(const RawQp& qp, Lie lie) {
  constexpr unsigned kSend = static_cast<unsigned>(SlotKind::kSend);
  constexpr unsigned kWhole = SlotFlags::kFirst | SlotFlags::kLast;
  switch (lie) {
    case Lie::kNone: return qp.publish(0, kSend, kWhole, 8, 0x1234);
    case Lie::kUnknownKind: return qp.publish(0, 77, kWhole, 8, 0);
    case Lie::kLongInSlot: return qp.publish(0, kSend, kWhole, 1U << 31, 0);
    case Lie::kFarPosition: return qp.publish(0, kSend, kWhole | SlotFlags::kInData, ~0U, ~std::uint64_t{0});
    case Lie::kNotFirst: return qp.publish(0, kSend, SlotFlags::kLast, 8, 0);
    case Lie::kOpenWriteImm:
      return qp.publish(0, static_cast<unsigned>(SlotKind::kWriteImm), SlotFlags::kFirst, 0xFFFFFFF0U, 0);
    case Lie::kEmptySegments: return qp.publish(0, kSend, SlotFlags::kFirst, 0, 0);
    case Lie::kTwiceFirst:
      qp.publish(1, kSend, SlotFlags::kFirst, 8, 0);
      return qp.publish(0, kSend, SlotFlags::kFirst | SlotFlags::kInData, kSegmentBytes, 0);
    case Lie::kCounters:
      qp.control().receives.posted.store(std::uint64_t{1} << 60);
      return qp.control().consumer.consumed.store(std::uint64_t{1} << 62);
    case Lie::kAlwaysInside: return qp.control().access.word.store(1);
    default: break;
  }
  if (lie < Lie::kGarbage) return;
  std::uint64_t state = static_cast<std::uint64_t>(lie) * 0x9E3779B97F4A7C15U;
  const auto random = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  };
  for (std::uint64_t index = 32; index-- > 0;) {
    const std::uint64_t word = random();
    qp.publish(
        index, static_cast<unsigned>(word % 7), static_cast<unsigned>(word >> 8) & 0xF,
        (word >> 16) % 4 == 0 ? static_cast<std::uint32_t>(random()) : static_cast<std::uint32_t>(random() % 5000),
        random());
  }
}

constexpr std::size_t kFlippedBytes = 64;
constexpr std::byte kFlipped{0xEE};
constexpr std::uint64_t kFlips = 20'000;

/// Asks the owner's service thread to write and to read kFlippedBytes, and changes that length to the longest that it
/// takes and back all the time. Nothing behind those bytes may be written, or come here.
void flip_asks(Outcome& outcome, const Command& command, const RawQp& qp, int fd, const QpGeometry& geometry,
               RawClient& client) {
  const std::size_t size = geometry.total_bytes();
  void* const theirs = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (theirs == MAP_FAILED) return outcome.expect(false, "mmap of the owner's queue pair");
  const auto& answers =
      *reinterpret_cast<const ServiceBlock*>(static_cast<const std::byte*>(theirs) + geometry.service_offset());
  auto& own = *reinterpret_cast<ServiceBlock*>(qp.data + qp.geometry.service_offset());
  std::memset(own.written, std::to_integer<int>(kFlipped), sizeof own.written);
  own.ask.write(
      {.rkey = static_cast<std::uint32_t>(command.memory[1]), .address = command.memory[0], .length = kFlippedBytes});
  const std::jthread flipper([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      own.ask.length.store(kServiceBytes, std::memory_order_relaxed);
      own.ask.length.store(kFlippedBytes, std::memory_order_relaxed);
    }
  });
  WireRequest serve;
  serve.type = RequestType::kServe;
  serve.your_qp = command.owner.address.qp_num;
  const bool is_long = long_run() != 0s;
  const Deadline enough = Deadline::after(is_long ? long_run() : 5s);  // The owner waits for all of it.
  const std::uint64_t most = is_long ? ~std::uint64_t{0} : kFlips;
  for (std::uint64_t number = 1; number <= most && outcome.good && !enough.passed(); ++number) {
    own.ask.op.store(number % 2 == 0 ? ServiceOp::kRead : ServiceOp::kWrite);
    own.ask.number.store(number);
    const Deadline deadline = Deadline::after(10s);
    while (answers.answer.number.load() != number && !deadline.passed()) {
      // Once more while nothing comes: the owner may not know this queue pair yet, and a socket may be full.
      (void)client.send(&serve, sizeof serve);
      const Deadline soon = Deadline::after(1ms);
      while (answers.answer.number.load() != number && !soon.passed()) std::this_thread::yield();
    }
    outcome.expect(answers.answer.number.load() == number, "no answer");
    outcome.count += answers.answer.answer.load() == ServiceAnswer::kDone ? 1 : 0;
    const std::span<const std::byte> behind(answers.read + kFlippedBytes, kServiceBytes - kFlippedBytes);
    outcome.expect(std::ranges::all_of(behind, [](std::byte byte) { return byte == std::byte{0}; }),
                   "read what is behind the region");
  }
  ::munmap(theirs, size);
}

constexpr std::uint32_t kEntries = 4096;

/// A table of keys; `lent` bytes are behind each of the lent ones. The others were never written.
Fd make_keys(Outcome& outcome, std::size_t lent) {
  Fd keys = make_memfd(kEntries * sizeof(KeyEntry), 0);
  std::vector<KeyEntry> entries(kLentKeys + 1);
  for (std::uint32_t number = 1; lent != 0 && number <= kLentKeys; ++number) {
    KeyEntry& entry = entries[number];
    entry.live.store(std::uint64_t{1} << 32 | lent_key(number));
    entry.domain.store(1);
    entry.access.store(IBV_ACCESS_REMOTE_READ | (number > kLentKeys / 2 ? IBV_ACCESS_REMOTE_WRITE : 0));
    entry.iova.store(kLentAddress);
    entry.length.store(lent);
    entry.memory_id.store(number);
  }
  const std::size_t bytes = entries.size() * sizeof(KeyEntry);
  outcome.expect(::pwrite(keys.get(), entries.data(), bytes, 0) == static_cast<ssize_t>(bytes), "keys");
  outcome.expect(::fcntl(keys.get(), F_ADD_SEALS, kKeptSeals) == 0, "seals of the keys");
  return keys;
}

std::uint32_t pages_of(int fd) {
  struct stat file{};
  return ::fstat(fd, &file) == 0 ? static_cast<std::uint32_t>(file.st_blocks / 8) : 0;
}

/// Lends memory to the first who asks, and tells the pages that it has once the owner is done with it.
void lend(Outcome& outcome, const Lent& lent, int socket, RawListener& listener, Fd& lent_memory) {
  lent_memory = make_memfd(lent.bytes, 0);
  if (lent.is_whole) {
    const std::vector<std::byte> bytes(lent.bytes, std::byte{1});
    outcome.expect(::pwrite(lent_memory.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(lent.bytes),
                   "pwrite");
  }
  const int seals = lent.is_kept ? kKeptSeals : kKeptSeals & ~F_SEAL_FUTURE_WRITE;
  outcome.expect(::fcntl(lent_memory.get(), F_ADD_SEALS, seals) == 0, "seals of what is lent");
  WireRequest request;
  Fds fds;
  const bool is_asked = listener.take(request, fds, Deadline::after(10s)) && request.type == RequestType::kMemory;
  outcome.expect(is_asked, "was not asked for memory");
  Reply mine;
  mine.gid = listener.gid();
  mine.size = lent.bytes;
  mine.writable = lent.is_writable ? 1 : 0;
  mine.is_populated = 1;
  outcome.expect(listener.answer(mine, {lent_memory.get()}), "could not answer");
  std::uint32_t is_done = 0;
  outcome.expect(get(socket, is_done), "the owner is gone");
  outcome.count = pages_of(lent_memory.get());
}

/// Offers, says where it listens, serves the owner's connection, then tells its lie.
void offer_and_lie(Outcome& outcome, const Command& command, int socket, RawListener& listener, RawClient& client) {
  const auto number = static_cast<std::uint64_t>(command.lie) + command.owner.address.qp_num * 1000ULL;
  outcome.expect(listener.listen(command.owner.address.gid, number), "listen");
  outcome.address.gid = listener.gid();
  outcome.address.qp_num = 77;
  Reply reply;
  Fds fds;
  outcome.expect(client.connect(command.owner.address.gid) && client.hello(listener.gid(), reply, fds), "hello");
  const RawQp qp = make_raw_qp(outcome, command.lie);
  if (command.lie == Lie::kAlwaysInside || command.lie == Lie::kTwoFaced) {
    WireRequest memory;
    memory.type = RequestType::kMemory;
    memory.memory_id = command.memory[0];
    outcome.expect(client.ask(memory, {}, reply, fds) && reply.answer == Answer::kOk, "memory");
  }
  WireRequest offer;
  offer.type = RequestType::kOffer;
  offer.my_gid = listener.gid();
  offer.my_qp = outcome.address.qp_num;
  offer.your_qp = command.owner.address.qp_num;
  offer.pd = 1;
  offer.access = conformance::kRemoteAccess;
  offer.ready_bit = 3;
  offer.geometry = qp.geometry;
  if (command.lie == Lie::kBrokenPipe) {
    int ends[2];
    outcome.expect(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
    ::close(ends[0]);
    const Fd writing(ends[1]);
    offer.bell_count = 1;
    // Whoever writes into that gets a SIGPIPE.
    outcome.expect(client.ask(offer, {qp.file.get(), writing.get()}, reply, fds), "no answer");
    outcome.answer = reply.answer;
    qp.control().rare.wake.store(Wake::kMessage | Wake::kCredit);
    qp.control().receives.posted.store(8);
  } else {
    outcome.expect(client.ask(offer, {qp.file.get()}, reply, fds) && reply.answer == Answer::kOk, "offer");
  }
  (void)put(socket, outcome);

  const Fd keys = make_keys(outcome, command.lie == Lie::kLends ? command.lent.bytes : 0);
  for (bool offered = false; !offered && outcome.good;) {
    WireRequest request;
    if (!listener.take(request, fds, Deadline::after(10s))) return outcome.expect(false, "the owner did not connect");
    const bool is_offer = request.type == RequestType::kOffer;
    outcome.expect(!is_offer || (fds.count == 1 && request.bell_count == 0), "got a bell that it could empty");
    Reply mine;
    mine.gid = listener.gid();
    mine.key_entries = kEntries;
    if (request.type == RequestType::kHello) {
      (void)listener.answer(mine, {keys.get()});
      continue;
    }
    if (command.lie == Lie::kTwoFaced && request.type == RequestType::kOffer) {
      qp.control().access.word.store(1);
      outcome.expect(client.ask(offer, {qp.file.get()}, reply, fds), "second offer");
      mine.answer = Answer::kUnknown;
    }
    (void)listener.answer(mine, {});
    offered = request.type == RequestType::kOffer;
    if (offered && command.lie == Lie::kFlippingAsk)
      flip_asks(outcome, command, qp, fds.fds[0].get(), request.geometry, client);
    if (offered && command.lie == Lie::kNone)
      attack_descriptor(outcome, fds.fds[0].get(), request.geometry.total_bytes(), false);
  }
  tell_lie(qp, command.lie);
  ::munmap(qp.data, qp.size);
}

void push_offers(Outcome& outcome, const Command& command) {
  RawClient client;
  Reply reply;
  Fds fds;
  outcome.expect(client.connect(command.owner.address.gid) && client.hello({}, reply, fds), "hello");
  for (std::uint32_t i = 0; i < 16; ++i) {
    const RawQp qp = make_raw_qp(outcome, Lie::kNone);
    WireRequest offer;
    offer.type = RequestType::kOffer;
    offer.my_gid = command.victim.gid;
    offer.my_qp = command.victim.qp_num + i;  // The first is in the victim's very name.
    offer.your_qp = command.owner.address.qp_num;
    offer.geometry = qp.geometry;
    outcome.expect(client.ask(offer, {qp.file.get()}, reply, fds), "no answer");
    ::munmap(qp.data, qp.size);
  }
}

void flood(Outcome& outcome, const Command& command, std::vector<RawClient>& held) {
  const ibv_gid& owner = command.owner.address.gid;
  std::array<char, 4096> noise{};
  for (int i = 0; i < 200; ++i) {
    RawClient silent;
    if (silent.connect(owner)) held.push_back(std::move(silent));
    RawClient half;
    (void)(half.connect(owner) && half.send(noise.data(), 10));
    RawClient large;
    (void)(large.connect(owner) && large.send(noise.data(), noise.size()));
    outcome.expect(large.hung_up() && half.hung_up(), "broken messages were accepted");
  }
  RawClient busy;
  Reply reply;
  Fds fds;
  outcome.expect(busy.connect(owner) && busy.hello({}, reply, fds), "hello");
  const WireRequest hello;
  // Never takes an answer: it is cut off, not waited for.
  bool cut = false;
  for (const Deadline deadline = conformance::soon(); !cut && !deadline.passed();) {
    cut = !busy.send(&hello, sizeof hello) && errno != EAGAIN;
    if (!cut) std::this_thread::yield();
  }
  outcome.expect(cut, "was served for ever");
  for (int i = 0; i < 600; ++i) {
    RawClient greeted;
    if (!greeted.connect(owner) || !greeted.hello({}, reply, fds)) continue;
    ++outcome.count;
    held.push_back(std::move(greeted));
  }
}

void connect_always(Outcome& outcome, const Command& command, int socket) {
  pollfd told{socket, POLLIN, 0};
  for (; ::poll(&told, 1, 0) == 0; ++outcome.count) {
    RawClient one;
    (void)one.connect(command.owner.address.gid);
  }
}

/// Until the owner says a word. Then every request must have had its reply.
void ask_always(Outcome& outcome, const Command& command, int socket, RawClient& client) {
  constexpr std::uint32_t kMostUnanswered = 64;  // Whoever takes no replies is cut off.
  constexpr std::array kKinds{RequestType::kTake, RequestType::kServe, RequestType::kWake,  RequestType::kTake,
                              RequestType::kTake, RequestType::kHello, RequestType::kMemory};
  const std::size_t kinds = command.memory[0] == static_cast<std::uint64_t>(Flood::kAllKinds) ? kKinds.size() : 1;
  // Several threads: a single one and the control thread wake each other in turns, and both idle.
  const auto send_takes = [&](const std::stop_token& stop) {
    WireRequest take;
    take.type = RequestType::kTake;
    take.your_qp = command.owner.address.qp_num;
    while (!stop.stop_requested()) (void)client.send(&take, sizeof take);
  };
  std::jthread second(send_takes);
  std::jthread third(send_takes);
  std::size_t unanswered = 0;
  pollfd told{socket, POLLIN, 0};
  while (outcome.count % 256 != 0 || ::poll(&told, 1, 0) == 0) {
    WireRequest request;
    request.type = kKinds[outcome.count++ % kinds];
    request.your_qp = command.owner.address.qp_num;
    request.memory_id = command.memory[1];
    const bool has_reply = request.type == RequestType::kHello || request.type == RequestType::kMemory;
    if (has_reply && unanswered == kMostUnanswered) continue;
    const bool is_sent = client.send(&request, sizeof request);
    outcome.expect(is_sent || errno == EAGAIN, "was cut off");
    if (is_sent && has_reply) ++unanswered;
    unanswered -= client.drop_replies();
  }
  second = {};
  third = {};
  Reply reply;
  Fds fds;
  for (; unanswered != 0 && outcome.good; --unanswered) outcome.expect(client.take(reply, fds), "a reply is missing");
}

void keep_asking(Outcome& outcome, const Command& command, int socket, RawClient& client) {
  if (command.memory[0] == static_cast<std::uint64_t>(Flood::kConnections)) {
    connect_always(outcome, command, socket);
  } else {
    ask_always(outcome, command, socket, client);
  }
  char word = 0;
  outcome.expect(get(socket, word), "the owner is gone");
}

int be_stranger(int socket) {
  if (::setgroups(0, nullptr) != 0 || ::setresgid(kStranger, kStranger, kStranger) != 0 ||
      ::setresuid(kStranger, kStranger, kStranger) != 0) {
    return 2;
  }
  ::prctl(PR_SET_DUMPABLE, 1);  // As a process has it that was started by that user.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<RawClient> held;
  RawListener listener;
  RawClient client;
  Fd lent_memory;
  for (Command command; get(socket, command);) {
    Outcome outcome;
    Reply reply;
    Fds fds;
    switch (command.act) {
      case Act::kGreet: {
        RawClient guest;
        outcome.expect(guest.connect(command.owner.address.gid) && guest.hello({}, reply, fds), "hello");
        outcome.answer = reply.answer;
        outcome.count = static_cast<std::uint32_t>(fds.count);
        break;
      }
      case Act::kDescriptors: try_descriptors(outcome, command); break;
      case Act::kOffer: offer_and_lie(outcome, command, socket, listener, client); break;
      case Act::kPush: push_offers(outcome, command); break;
      case Act::kFlood: flood(outcome, command, held); break;
      case Act::kLend: lend(outcome, command.lent, socket, listener, lent_memory); break;
      case Act::kKeepAsking: keep_asking(outcome, command, socket, client); break;
    }
    if (!put(socket, outcome)) return 3;
  }
  return 0;
}

/// An honest peer; `argument` bit 0: of another user, 1: whom it allows, 2: in a network namespace of its own, 3: with
/// a child that keeps its sockets.
int be_peer(std::uint64_t argument, int socket) {
  if ((argument & 4) != 0 && ::unshare(CLONE_NEWNET) != 0) return 77;
  if ((argument & 1) != 0) {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kStranger, kStranger, kStranger) != 0 ||
        ::setresuid(kStranger, kStranger, kStranger) != 0) {
      return 2;
    }
    ::prctl(PR_SET_DUMPABLE, 1);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  const uid_t root = 0;
  SoftOptions options{.max_qp = 16, .max_mr = 64};
  if ((argument & 2) != 0) options.allowed_uids = std::span(&root, 1);
  auto nic = open_soft(options);
  Side side;
  if (!nic || !make_side(side, **nic, kHostileOptions)) return 3;
  Introduction owner;
  if (!put(socket, introduce(side)) || !get(socket, owner)) return 4;
  const auto connected = connect_side(side, owner.address);
  const Status status = connected ? Status::kOk : connected.error().status();
  if (!put(socket, status)) return 5;
  if (connected) {
    test::fill(side.bytes(0, 64), 5);
    (void)Post(IBV_WR_SEND, 1).gather(side.sge(0, 64)).post(side);
  }
  if ((argument & 8) != 0 && ::fork() == 0) {
    ::prctl(PR_SET_PDEATHSIG, 0);
    char end = 0;  // Ends with the test: the other end of the socket closes.
    (void)put(socket, end);
    (void)get(socket, end);
    ::_exit(0);
  }
  const Deadline deadline = Deadline::after(60s);
  pollfd entry{socket, POLLIN, 0};
  while (!deadline.passed() && ::poll(&entry, 1, 1) == 0) side.poll();
  return 0;
}

// --- the owner --------------------------------------------------------------------------------------------------

class Hostile : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, to start a process of another user";
    open(true);
  }
  void open(bool allow) {
    const uid_t allowed = kStranger;
    SoftOptions options{.max_qp = 64, .max_mr = 64};
    if (allow) options.allowed_uids = std::span(&allowed, 1);
    auto opened = open_soft(options);
    ASSERT_OK(opened);
    nic_ = std::move(*opened);
  }
  void TearDown() override {
    // The other process outlives no test: it is killed here, before what it was connected to goes.
    other_ = OtherProcess();
    target_region_.reset();
    for (Side* side : {&side_, &good_, &twin_}) {
      if (side->nic != nullptr) side->close();
    }
  }
  void start(std::string_view role, std::uint64_t argument = 0) {
    other_ = OtherProcess::start(role, argument);
    ASSERT_TRUE(other_);
  }
  /// Starts an honest process, connects `side_` to it, and polls until its message has come. `argument` is the role's.
  void receive_from_peer(std::uint64_t argument) {
    ASSERT_OK(make_side(side_, *nic_, kHostileOptions));
    ASSERT_EQ(side_.post_recv(1, side_.sge(0, 64)), 0);
    ASSERT_NO_FATAL_FAILURE(start("peer", argument));
    Introduction peer;
    Status status{};
    ASSERT_TRUE(get(other_.socket(), peer));
    ASSERT_OK(connect_side(side_, peer.address));
    ASSERT_TRUE(put(other_.socket(), introduce(side_)) && get(other_.socket(), status));
    EXPECT_EQ(status, Status::kOk);
    const Deadline deadline = conformance::soon();
    while (side_.received.empty() && !deadline.passed()) side_.poll();
    ASSERT_FALSE(side_.received.empty());
  }
  Outcome act(const Command& command) {
    Outcome outcome;
    outcome.good = false;
    if (!put(other_.socket(), command) || !get(other_.socket(), outcome)) ADD_FAILURE() << "the stranger is gone";
    EXPECT_TRUE(outcome.good) << outcome.text;
    return outcome;
  }
  void poll_all() {
    for (Side* side : {&side_, &good_, &twin_}) {
      if (side->nic != nullptr) side->poll();
    }
  }
  /// A pair of this NIC's own that nothing may disturb.
  void make_good() {
    ASSERT_OK(make_side(good_, *nic_, kHostileOptions));
    ASSERT_OK(make_side(twin_, *nic_, kHostileOptions));
  }
  void exchange() {
    good_.received.clear();
    ASSERT_EQ(good_.post_recv(9, good_.sge(0, 4096)), 0);
    test::fill(twin_.bytes(0, 4096), ++messages_);
    ASSERT_EQ(Post(IBV_WR_SEND, 1).gather(twin_.sge(0, 4096)).post(twin_), 0);
    const Deadline deadline = conformance::soon();
    while (good_.received.empty() && !deadline.passed()) poll_all();
    ASSERT_FALSE(good_.received.empty());
    EXPECT_TRUE(conformance::succeeded(good_.received.front(), 9, IBV_WC_RECV));
    EXPECT_TRUE(test::matches(good_.bytes(0, 4096), messages_));
  }
  void make_good_pair() {
    ASSERT_NO_FATAL_FAILURE(make_good());
    ASSERT_OK(connect_side(good_, twin_.nic->address_of(twin_.qp.get())));
    ASSERT_OK(connect_side(twin_, good_.nic->address_of(good_.qp.get())));
    exchange();
  }
  bool reaches_error() {
    const Deadline deadline = conformance::soon();
    while (side_.state() != IBV_QPS_ERR && !deadline.passed()) poll_all();
    return side_.state() == IBV_QPS_ERR;
  }
  /// One hand-made peer with one lie, connected as far as it goes. `lent`: bytes behind each of its keys.
  void meet(Lie lie, std::size_t lent = 0) {
    side_ = Side();
    ASSERT_OK(make_side(side_, *nic_, kHostileOptions));
    if (lie != Lie::kCounters) {
      for (std::size_t i = 0; i < 4; ++i) ASSERT_EQ(side_.post_recv(i, side_.sge(i * 8192, 8192)), 0);
    }
    Command command{.act = Act::kOffer,
                    .lie = lie,
                    .owner = introduce(side_),
                    .victim = {},
                    .memory = {side_.memory_id},
                    .lent = {lent}};
    if (lie == Lie::kFlippingAsk) {
      ASSERT_NO_FATAL_FAILURE(make_target(command));
    }
    ASSERT_TRUE(put(other_.socket(), command) && get(other_.socket(), offered_));
    ASSERT_TRUE(offered_.good) << offered_.text;
    const auto connected = connect_side(side_, offered_.address);
    if (lie == Lie::kTwoFaced) {
      EXPECT_STATUS(connected, Status::kProtocol);
    } else {
      ASSERT_OK(connected);
    }
    Outcome done;
    ASSERT_TRUE(get(other_.socket(), done));
    EXPECT_TRUE(done.good) << done.text;
    served_ = done.count;
  }

  /// Imports the stranger's window of that number, which lends memory for it. Returns the pages that the memory has
  /// then.
  std::uint32_t borrow(std::uint32_t number, const Lent& lent, Status expected,
                       std::uint32_t access = IBV_ACCESS_REMOTE_READ) {
    const Command command{.act = Act::kLend, .lie = {}, .owner = {}, .victim = {}, .memory = {}, .lent = lent};
    EXPECT_TRUE(put(other_.socket(), command));
    const Window window{
        .address = kLentAddress, .length = lent.bytes, .rkey = lent_key(number), .access = access, .memory_id = number};
    const auto imported = nic_->import_window(side_.qp.get(), window, conformance::soon());
    EXPECT_EQ(imported ? Status::kOk : imported.error().status(), expected);
    Outcome outcome;
    EXPECT_TRUE(put(other_.socket(), std::uint32_t{1}) && get(other_.socket(), outcome) && outcome.good)
        << outcome.text;
    return outcome.count;
  }

  /// A region of kFlippedBytes in the middle of this process's own memory, for the peer of `side_`.
  void make_target(Command& command) {
    target_.assign(3 * kServiceBytes, std::byte{0x11});
    std::byte* const at = target_.data() + kServiceBytes;
    const auto address = reinterpret_cast<std::uint64_t>(at);
    const auto made = nic_->reg_mr(side_.pd.get(), at, kFlippedBytes, address, conformance::kAllAccess);
    ASSERT_OK(made);
    target_region_ = Mr(*nic_, *made);
    command.memory = {address, target_region_->rkey, 0};
  }

  std::unique_ptr<Nic> nic_;
  std::vector<std::byte> target_;
  Mr target_region_;
  Side side_;
  Side good_;
  Side twin_;
  OtherProcess other_;
  Outcome offered_;
  std::uint64_t messages_ = 0;
  std::uint32_t served_ = 0;  ///< Requests of the peer that was met last.
};

TEST_F(Hostile, AnotherUserIsRefusedByDefault) {
  nic_.reset();
  ASSERT_NO_FATAL_FAILURE(open(false));
  ASSERT_OK(make_side(side_, *nic_, kHostileOptions));
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  const Outcome outcome = act({.act = Act::kGreet, .lie = {}, .owner = introduce(side_), .victim = {}, .memory = {}});
  EXPECT_EQ(outcome.answer, Answer::kNotAllowed);
  EXPECT_EQ(outcome.count, 0U);
  // Both sides' calls say so, whoever of the two has the other on its list.
  for (const std::uint64_t allows : {0U, 2U}) {
    ASSERT_NO_FATAL_FAILURE(start("peer", 1 | allows));
    Introduction peer;
    ASSERT_TRUE(get(other_.socket(), peer));
    EXPECT_STATUS(connect_side(side_, peer.address), Status::kNotAllowed);
    Status status{};
    ASSERT_TRUE(put(other_.socket(), introduce(side_)) && get(other_.socket(), status));
    EXPECT_EQ(status, Status::kNotAllowed);
  }
}

TEST_F(Hostile, AnotherUserConnectsWhenAllowed) {
  ASSERT_NO_FATAL_FAILURE(receive_from_peer(1 | 2));
  EXPECT_TRUE(conformance::succeeded(side_.received.front(), 1, IBV_WC_RECV));
  EXPECT_TRUE(test::matches(side_.bytes(0, 64), 5));
  const auto process = nic_->peer_of(side_.qp.get());
  ASSERT_OK(process);
  EXPECT_EQ(process->uid, kStranger);
  EXPECT_EQ(process->pid, other_.pid());
}

TEST_F(Hostile, DescriptorsAreGoodForNothingElse) {
  ASSERT_OK(make_side(side_, *nic_, kHostileOptions));
  const auto make = [&](host::Share share, Grant::To to) {
    auto arena = host::Arena::create({.size_bytes = 65536, .share = share, .prefault_threads = 1});
    EXPECT_OK(arena);
    auto id = nic_->attach(*arena, {.to = to, .gid = nic_->gid()});
    EXPECT_OK(id);
    return std::pair(std::move(*arena), *id);
  };
  auto [open_arena, open_id] = make(host::Share::kReadOnly, Grant::To::kAnyPeer);
  auto [closed_arena, closed_id] = make(host::Share::kReadWrite, Grant::To::kOneGid);
  test::fill(open_arena.bytes(), 3);
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  (void)act({.act = Act::kDescriptors,
             .lie = {},
             .owner = introduce(side_),
             .victim = {},
             .memory = {side_.memory_id, open_id, closed_id}});
  // Punched, at worst: all of it is still there to read and write.
  std::ranges::fill(side_.arena.bytes(), std::byte{7});
  EXPECT_TRUE(test::all_are(side_.arena.bytes(), std::byte{7}));
  EXPECT_TRUE(test::matches(open_arena.bytes(), 3));
  EXPECT_OK(nic_->detach(open_id));
  EXPECT_OK(nic_->detach(closed_id));
}

// A peer says that its memory is populated, as the honest one is that faults it in. Whoever believes it makes the
// pages.
TEST_F(Hostile, ClaimedPagesAreNotMade) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  constexpr std::size_t kClaimed = std::size_t{64} << 20;
  const auto bytes_of = [](const host::Arena& arena) {
    struct stat file{};
    EXPECT_EQ(::fstat(arena.fd(), &file), 0);
    return static_cast<std::size_t>(file.st_blocks) * 512;
  };
  for (const bool is_whole : {true, false}) {
    SCOPED_TRACE(is_whole);
    auto arena = host::Arena::create({.size_bytes = kClaimed, .share = host::Share::kReadWrite});
    ASSERT_OK(arena);
    const auto id = nic_->attach(*arena, {.to = Grant::To::kAnyPeer});
    ASSERT_OK(id);
    const auto address = reinterpret_cast<std::uint64_t>(arena->data());
    const auto made = nic_->reg_mr(twin_.pd.get(), arena->data(), kClaimed, address, conformance::kAllAccess);
    ASSERT_OK(made);
    Mr region(*nic_, *made);
    if (!is_whole) {
      ASSERT_EQ(::fallocate(arena->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kClaimed - 4096), 0);
    }
    const std::size_t before = bytes_of(*arena);
    const Window window = nic_->window_of(region.get());
    ASSERT_OK(nic_->import_window(good_.qp.get(), window, conformance::soon()));
    EXPECT_EQ(bytes_of(*arena), before);
    EXPECT_OK(nic_->release_window(good_.qp.get(), window));
    region = Mr();
    EXPECT_OK(nic_->detach(*id));
  }
}

// Whoever reads a hole makes the page, and pays for it as long as the stranger keeps the memory.
TEST_F(Hostile, MemoryWithHolesIsNotRead) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  constexpr std::size_t kBytes = std::size_t{64} << 10;
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kLends, kBytes));
  EXPECT_EQ(borrow(1, {.bytes = kBytes, .is_whole = true, .is_kept = true}, Status::kOk), kBytes / 4096);
  EXPECT_EQ(borrow(2, {.bytes = kBytes, .is_kept = true}, Status::kProtocol), 0U);
  EXPECT_EQ(borrow(3, {.bytes = kBytes, .is_writable = true}, Status::kProtocol), 0U);
  EXPECT_EQ(borrow(4, {.bytes = kBytes, .is_whole = true}, Status::kProtocol), kBytes / 4096)
      << "its pages can go again";
  // Who may write there pays for what it touches, and for nothing before. A later import for reading finds that out.
  constexpr std::uint32_t kBoth = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  EXPECT_EQ(borrow(5, {.bytes = kBytes, .is_writable = true}, Status::kOk, kBoth), 0U);
  const Window again{
      .address = kLentAddress, .length = kBytes, .rkey = lent_key(5), .access = IBV_ACCESS_REMOTE_READ, .memory_id = 5};
  EXPECT_STATUS(nic_->import_window(side_.qp.get(), again, conformance::soon()), Status::kProtocol);
  // A key at a place of the table that nobody has written.
  const Window nowhere{
      .address = kLentAddress, .length = 8, .rkey = lent_key(kEntries - 1), .access = 0, .memory_id = 9};
  EXPECT_STATUS(nic_->import_window(side_.qp.get(), nowhere, conformance::soon()), Status::kNotFound);
  exchange();
}

TEST_F(Hostile, AddressSpaceIsBounded) {
#if defined(VERBENA_TSAN)
  GTEST_SKIP() << "TSan leaves a process 1.5 TiB";
#endif
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  constexpr std::size_t kBytes = std::size_t{1} << 40;
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kLends, kBytes));
  const Lent sparse{.bytes = kBytes, .is_writable = true};
  EXPECT_EQ(borrow(5, sparse, Status::kOk, 0), 0U);
  EXPECT_EQ(borrow(6, sparse, Status::kOk, 0), 0U);
  EXPECT_EQ(borrow(7, sparse, Status::kLimit, 0), 0U);
  exchange();
}

TEST_F(Hostile, LiesEndTheLiarsQueuePair) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  for (Lie lie = Lie::kNoEntries; lie <= Lie::kTwiceFirst;
       lie = static_cast<Lie>(static_cast<std::uint32_t>(lie) + 1)) {
    SCOPED_TRACE(testing::Message() << "lie " << static_cast<std::uint32_t>(lie));
    ASSERT_NO_FATAL_FAILURE(meet(lie));
    EXPECT_TRUE(reaches_error());
    EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kProtocol);
    for (const ibv_wc& wc : side_.received) EXPECT_NE(wc.status, IBV_WC_SUCCESS);
    side_.close();
    ASSERT_NO_FATAL_FAILURE(exchange());
  }
}

TEST_F(Hostile, AHandMadePeerWorksWithoutALie) {
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kNone));
  const Deadline deadline = conformance::soon();
  while (side_.received.empty() && !deadline.passed()) side_.poll();
  ASSERT_FALSE(side_.received.empty());
  EXPECT_TRUE(conformance::succeeded(side_.received.front(), 0, IBV_WC_RECV));
  EXPECT_EQ(side_.word(0), 0x1234U);
  other_.kill();
  EXPECT_TRUE(reaches_error());
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kPeerLost);
}

TEST_F(Hostile, GarbageInTheRing) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ASSERT_NO_FATAL_FAILURE(meet(static_cast<Lie>(static_cast<std::uint32_t>(Lie::kGarbage) + seed)));
    // More slots than receives: any sequence of them ends in an error.
    EXPECT_TRUE(reaches_error());
    EXPECT_NE(nic_->qp_failure(side_.qp.get()), Status::kOk);
    side_.close();
  }
  exchange();
}

TEST_F(Hostile, CountersThatLie) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kCounters));
  // Believed to have any number of receives and never to consume: the ring fills, then sends wait.
  std::size_t posted = 0;
  for (int i = 0; i < 1000; ++i) {
    side_.poll();
    ibv_send_wr* bad = nullptr;
    Post request(IBV_WR_SEND, 1);
    request.gather(side_.sge(0, 4096));
    posted += ibv_post_send(side_.qp.get(), &request.prepare(), &bad) == 0;
  }
  EXPECT_GE(posted, 32U);
  EXPECT_LE(posted, 64U);
  exchange();
  other_.kill();
  EXPECT_TRUE(reaches_error());
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kPeerLost);
}

// The check of a length and its use must see one value.
TEST_F(Hostile, AskedLengthsThatChangeMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kFlippingAsk));
  EXPECT_GT(served_, 0U) << "each of the requests was refused";
  target_region_.reset();  // Nobody writes there any more.
  const std::span<const std::byte> all(target_);
  const auto is_old = [](std::byte byte) { return byte == std::byte{0x11}; };
  EXPECT_TRUE(std::ranges::all_of(all.first(kServiceBytes), is_old));
  EXPECT_TRUE(
      std::ranges::all_of(all.subspan(kServiceBytes, kFlippedBytes), [](std::byte b) { return b == kFlipped; }));
  EXPECT_TRUE(std::ranges::all_of(all.subspan(kServiceBytes + kFlippedBytes), is_old));
  exchange();
}

TEST_F(Hostile, APeerThatNeverLeavesARegion) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kAlwaysInside));
  Mr region = side_.reg(0, 4096, conformance::kAllAccess);
  EXPECT_STATUS(nic_->dereg_mr(region.release(), Deadline::after(20ms)), Status::kTimedOut);
  EXPECT_TRUE(reaches_error());
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kTimedOut);
  exchange();
}

// A peer that was given no time to leave may be in the middle of another, honest access.
TEST_F(Hostile, AHandleThatEndsEndsNoConnection) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kAlwaysInside));
  side_.reg(0, 4096, conformance::kAllAccess).reset();
  Mr region = side_.reg(4096, 4096, conformance::kAllAccess);
  EXPECT_STATUS(nic_->dereg_mr(region.release(), Deadline::now()), Status::kTimedOut);
  side_.poll();
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kOk);
  EXPECT_EQ(nic_->qp_state(side_.qp.get()), IBV_QPS_RTS);
  exchange();
}

// It is waited for once, and only where it can be.
TEST_F(Hostile, APeerThatNeverLeavesHoldsUpOnlyWhatItHas) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kAlwaysInside));
  auto arena = host::Arena::create({.size_bytes = 65536, .share = host::Share::kReadWrite, .prefault_threads = 1});
  ASSERT_OK(arena);
  const auto id = nic_->attach(*arena, {.to = Grant::To::kAnyPeer});
  ASSERT_OK(id);
  const auto address = reinterpret_cast<std::uint64_t>(arena->data());
  const auto made = nic_->reg_mr(side_.pd.get(), arena->data(), 65536, address, conformance::kAllAccess);
  ASSERT_OK(made);
  EXPECT_OK(nic_->dereg_mr(*made, Deadline::now())) << "it was never handed that memory";
  EXPECT_OK(nic_->detach(*id));
  Mr first = side_.reg(0, 4096, conformance::kAllAccess);
  Mr second = side_.reg(4096, 4096, conformance::kAllAccess);
  EXPECT_STATUS(nic_->dereg_mr(first.release(), Deadline::after(20ms)), Status::kTimedOut);
  EXPECT_STATUS(nic_->dereg_mr(second.release(), Deadline::never()), Status::kTimedOut);
  exchange();
}

// Its thread may be in the middle of a copy. The region outlives the queue pair, and must not be reused before.
TEST_F(Hostile, APeerThatIsInsideARegionWhenItsQueuePairGoes) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kAlwaysInside));
  Mr region = side_.reg(0, 4096, conformance::kAllAccess);
  Mr other = side_.reg(4096, 4096, conformance::kAllAccess);
  side_.qp.reset();
  EXPECT_STATUS(nic_->dereg_mr(region.release(), Deadline::after(20ms)), Status::kTimedOut);
  other_ = OtherProcess();
  EXPECT_OK(nic_->dereg_mr(other.release(), conformance::soon()));
  exchange();
}

// A queue pair may go before the news that its peer's process has ended. Nothing of the peer stays then.
TEST_F(Hostile, APeerThatIsInsideWhenItIsKilledIsForgotten) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  const std::uint32_t before = nic_->objects().peers;
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kAlwaysInside));
  side_.close();
  EXPECT_EQ(nic_->objects().peers, before + 1) << "it is inside";
  other_ = OtherProcess();
  const Deadline deadline = conformance::soon();
  while (nic_->objects().peers != before && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(nic_->objects().peers, before);
  exchange();
}

// A peer that is always inside costs no more than so many queue pairs.
TEST_F(Hostile, APeerThatIsAlwaysInsideIsLost) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  for (int i = 0; i < 65; ++i) {
    ASSERT_NO_FATAL_FAILURE(meet(Lie::kAlwaysInside)) << i;
    side_.close();
  }
  EXPECT_LE(nic_->objects().peers, 2U);
  exchange();
}

// An invalidation that a failure cuts short proves nothing: who ends the window is told that the peer may be in it.
TEST_F(Hostile, APeerThatNeverLeavesAWindow) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kAlwaysInside));
  Mr region = side_.reg(0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  ASSERT_TRUE(region);
  const auto made = nic_->alloc_mw(side_.pd.get());
  ASSERT_OK(made);
  Mw window(*nic_, *made);
  window->rkey = ibv_inc_rkey(window->rkey);
  const ibv_mw_bind_info bind{region.get(), side_.address(0), 4096, IBV_ACCESS_REMOTE_WRITE};
  ASSERT_EQ(Post(IBV_WR_BIND_MW, 1).bind(window.get(), window->rkey, bind).post(side_), 0);
  const Deadline deadline = conformance::soon();
  while (side_.sent.empty() && !deadline.passed()) side_.poll();
  ASSERT_FALSE(side_.sent.empty());
  ASSERT_TRUE(conformance::succeeded(side_.sent.front(), 1, IBV_WC_BIND_MW));
  ASSERT_EQ(Post(IBV_WR_LOCAL_INV, 2).invalidate(window->rkey).post(side_), 0);
  for (int i = 0; i < 100; ++i) side_.poll();
  EXPECT_EQ(side_.sent.size(), 1U) << "the peer is inside";
  ASSERT_OK(conformance::to_error(*nic_, side_.qp.get()));
  while (side_.sent.size() == 1 && !deadline.passed()) side_.poll();
  EXPECT_STATUS(nic_->dealloc_mw(window.release(), Deadline::after(20ms)), Status::kTimedOut);
  exchange();
}

// Whoever takes the region from it waits; the rest of the NIC does not.
TEST_F(Hostile, APeerThatNeverLeavesHoldsUpNobodyElse) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kAlwaysInside));
  Mr region = side_.reg(0, 4096, conformance::kAllAccess);
  std::atomic<bool> is_over{false};
  std::uint64_t ended = 0;
  std::jthread taker([&] {
    EXPECT_STATUS(nic_->dereg_mr(region.release(), Deadline::after(1s)), Status::kTimedOut);
    ended = ticks_now();
    is_over = true;
  });
  // Calls that were over well before the other one, and begun well after it.
  std::vector<std::uint64_t> calls;
  while (!is_over) {
    const auto pd = nic_->alloc_pd();
    ASSERT_OK(pd);
    EXPECT_OK(nic_->dealloc_pd(*pd));
    calls.push_back(ticks_now());
  }
  taker.join();
  const auto margin = static_cast<std::uint64_t>(500'000 * ticks_per_us());
  const auto was_meanwhile = [&](std::uint64_t at) { return at > ended - margin && at < ended - margin / 10; };
  EXPECT_TRUE(std::ranges::any_of(calls, was_meanwhile)) << calls.size() << " calls";
  exchange();
}

TEST_F(Hostile, AnEventMustBeAnEventDescriptor) {
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kBrokenPipe));
  (void)Post(IBV_WR_SEND, 1).gather(side_.sge(0, 8)).post(side_);
  for (int i = 0; i < 100; ++i) side_.poll();
  EXPECT_EQ(offered_.answer, Answer::kBad);
}

// A file system that the peer serves may never answer a close.
TEST_F(Hostile, ADescriptorThatNeverClosesHoldsUpNobody) {
  const test::StuckFile file;
  if (file.fd() < 0) GTEST_SKIP() << "no FUSE file system can be mounted here: " << std::strerror(errno);
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  for (int i = 0; i < 6; ++i) {
    RawClient client;
    Reply reply;
    Fds fds;
    ASSERT_TRUE(client.connect(nic_->gid()) && client.hello({}, reply, fds));
    WireRequest offer;
    offer.type = RequestType::kOffer;
    offer.your_qp = good_.qp->qp_num;
    // The first ones are refused for what they are; then this user has sent enough of them.
    EXPECT_EQ(client.ask(offer, {file.fd()}, reply, fds), i < 4) << i;
    EXPECT_TRUE(i >= 4 || reply.answer == Answer::kOk) << "an offer is looked at once the owner connects";
  }
  exchange();
  RawClient client;
  Reply reply;
  Fds fds;
  EXPECT_TRUE(client.connect(nic_->gid()) && client.hello({}, reply, fds));
}

TEST_F(Hostile, APeerThatConnectsAndRefuses) {
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kTwoFaced));
  // Its side of the connection is still what revocation has to look at.
  Mr region = side_.reg(0, 4096, conformance::kAllAccess);
  EXPECT_STATUS(nic_->dereg_mr(region.release(), Deadline::after(20ms)), Status::kTimedOut);
  EXPECT_TRUE(reaches_error());
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kProtocol);
}

TEST_F(Hostile, OffersInTheNameOfOthers) {
  ASSERT_NO_FATAL_FAILURE(make_good());
  // The good offer is there first, then the stranger's, then the owner connects.
  ASSERT_OK(connect_side(twin_, nic_->address_of(good_.qp.get())));
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  (void)act({.act = Act::kPush,
             .lie = {},
             .owner = introduce(good_),
             .victim = nic_->address_of(twin_.qp.get()),
             .memory = {}});
  ASSERT_OK(connect_side(good_, nic_->address_of(twin_.qp.get())));
  exchange();
}

TEST_F(Hostile, Flood) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  const std::size_t before = test::open_descriptors();
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  const Outcome outcome = act({.act = Act::kFlood, .lie = {}, .owner = introduce(good_), .victim = {}, .memory = {}});
  exchange();
  // One user takes its share of this process's descriptors, not all of them.
  EXPECT_LE(outcome.count, 256U);
  EXPECT_LE(test::open_descriptors(), before + 400);
  // Another process of ours connects all the same, while the stranger's connections stand.
  OtherProcess stranger = std::move(other_);
  ASSERT_NO_FATAL_FAILURE(receive_from_peer(0));
}

// A peer that asks all the time gets a part of the control thread, and the rest of it stays for everybody else.
class Floods : public Hostile, public testing::WithParamInterface<Flood> {
 protected:
  /// Sleeps until a message has come.
  static bool await_message(Side& side, Deadline deadline) {
    while (side.received.empty()) {
      EXPECT_EQ(ibv_req_notify_cq(side.recv_cq.get(), 0), 0);
      side.poll();
      if (side.received.empty() && !side.nic->wait(side.channel.get(), deadline)) return false;
      side.poll();
    }
    side.received.clear();
    side.sent.clear();
    return true;
  }
  static void send_message(Side& side) {
    EXPECT_EQ(side.post_recv(1, side.sge(0, 64)), 0);
    EXPECT_EQ(Post(IBV_WR_SEND, 1).gather(side.sge(64, 64)).post(side), 0);
  }
  /// Messages to and fro between neighbours that sleep, until `is_enough` says so.
  template <class Enough>
  void exchange_asleep(const Enough& is_enough) {
    EXPECT_EQ(good_.post_recv(1, good_.sge(0, 64)), 0);
    const std::jthread echo([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (await_message(good_, Deadline::after(10ms))) send_message(good_);
      }
    });
    while (!is_enough()) {
      send_message(twin_);
      ASSERT_TRUE(await_message(twin_, conformance::soon()));
      // A pause, so that the peer has a processor to flood from.
      (void)twin_.nic->wait(twin_.channel.get(), Deadline::after(1ms));
    }
  }
  [[nodiscard]] Shares::Use use_of(pid_t pid, uid_t uid) const {
    return static_cast<const SoftNic&>(*nic_).use_of({pid, uid});
  }
  /// The flood of the stranger that `side_` is connected with, until its share has been used up several times, or a
  /// loaded machine keeps it from that.
  void expect_bounded_use() {
    const Shares::Use before = use_of(other_.pid(), kStranger);
    const std::uint64_t begun = ticks_now();
    ASSERT_TRUE(put(other_.socket(), Command{.act = Act::kKeepAsking,
                                             .lie = {},
                                             .owner = introduce(side_),
                                             .victim = {},
                                             .memory = {static_cast<std::uint64_t>(GetParam()), side_.memory_id}}));
    const Deadline least = Deadline::after(1s);
    const Deadline most = Deadline::after(5s);
    ASSERT_NO_FATAL_FAILURE(exchange_asleep([&] {
      return most.passed() || (least.passed() && use_of(other_.pid(), kStranger).put_off >= before.put_off + 5);
    }));
    const Shares::Use after = use_of(other_.pid(), kStranger);
    const std::uint64_t elapsed = ticks_now() - begun;
    was_put_off_ = after.put_off != before.put_off;
    const std::uint64_t shares = elapsed / 4 + (GetParam() == Flood::kConnections ? elapsed / 16 : 0);
    // Two bursts, and the requests that used them up.
    EXPECT_LE(after.ticks - before.ticks, shares + 3 * ticks_in(Shares::kBurst)) << "of " << elapsed;
  }

  bool was_put_off_ = false;
};

TEST_P(Floods, TakeAPartOfTheControlThread) {
  ASSERT_NO_FATAL_FAILURE(make_good_pair());
  ASSERT_NO_FATAL_FAILURE(start("stranger"));
  ASSERT_NO_FATAL_FAILURE(meet(Lie::kNone));
  const Deadline deadline = conformance::soon();
  while (side_.received.empty() && !deadline.passed()) side_.poll();
  // From now on nobody rings for it but the control thread, on behalf of a peer that may have met a full socket.
  (void)nic_->wait(side_.channel.get(), Deadline::now());
  ASSERT_EQ(ibv_req_notify_cq(side_.recv_cq.get(), 0), 0);
  ASSERT_NO_FATAL_FAILURE(expect_bounded_use());

  // An honest process connects meanwhile, and waits for nothing.
  const OtherProcess stranger = std::move(other_);
  Side flooded = std::move(side_);
  side_ = Side();
  ASSERT_NO_FATAL_FAILURE(receive_from_peer(0));
  EXPECT_EQ(use_of(other_.pid(), ::geteuid()).put_off, 0U);
  Outcome outcome;
  ASSERT_TRUE(put(stranger.socket(), 'e') && get(stranger.socket(), outcome));
  EXPECT_TRUE(outcome.good) << outcome.text;
  if (was_put_off_ && GetParam() == Flood::kTakes) {
    EXPECT_OK(nic_->wait(flooded.channel.get(), conformance::soon()));
    EXPECT_EQ(nic_->qp_failure(flooded.qp.get()), Status::kOk) << "it heard of the peer's end only";
  }
  flooded.close();
}
INSTANTIATE_TEST_SUITE_P(Kinds, Floods, testing::Values(Flood::kTakes, Flood::kAllKinds, Flood::kConnections));

// --- peers that are elsewhere, or gone -----------------------------------------------------------------------------

class Elsewhere : public Hostile {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(open(false));
    ASSERT_OK(make_side(side_, *nic_, kHostileOptions));
  }
  void befriend(std::uint64_t argument) {
    ASSERT_NO_FATAL_FAILURE(start("peer", argument));
    Introduction peer;
    Status status{};
    ASSERT_TRUE(get(other_.socket(), peer));
    ASSERT_OK(connect_side(side_, peer.address));
    ASSERT_TRUE(put(other_.socket(), introduce(side_)) && get(other_.socket(), status));
    ASSERT_EQ(status, Status::kOk);
  }
};

TEST_F(Elsewhere, AnotherNetworkNamespace) {
  ASSERT_NO_FATAL_FAILURE(start("peer", 4));
  Introduction peer;
  if (!get(other_.socket(), peer)) {
    const int status = other_.wait();
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 77) << status;
    GTEST_SKIP() << "unshare(CLONE_NEWNET) is not permitted here";
  }
  EXPECT_STATUS(connect_side(side_, peer.address), Status::kOtherNamespace);
  Status status{};
  ASSERT_TRUE(put(other_.socket(), introduce(side_)) && get(other_.socket(), status));
  EXPECT_EQ(status, Status::kOtherNamespace);
}

TEST_F(Elsewhere, AnAddressNobodyAnswersTo) {
  QpAddress address = nic_->address_of(side_.qp.get());
  address.gid.raw[15] ^= 1;
  EXPECT_STATUS(connect_side(side_, address), Status::kPeerLost);
  address.gid.raw[0] ^= 1;  // Of the hash of the boot.
  EXPECT_STATUS(connect_side(side_, address), Status::kOtherHost);
}

TEST_F(Elsewhere, ADeadProcess) {
  ASSERT_NO_FATAL_FAILURE(start("peer"));
  Introduction peer;
  ASSERT_TRUE(get(other_.socket(), peer));
  other_ = OtherProcess();
  EXPECT_STATUS(connect_side(side_, peer.address), Status::kPeerLost);
}

TEST_F(Elsewhere, ANicClosedInALivingProcess) {
  auto second = open_soft({.max_qp = 16, .max_mr = 64});
  ASSERT_OK(second);
  ASSERT_OK(make_side(good_, **second, kHostileOptions));
  ASSERT_OK(connect_side(side_, (*second)->address_of(good_.qp.get())));
  ASSERT_OK(connect_side(good_, nic_->address_of(side_.qp.get())));
  good_.close();
  second->reset();
  EXPECT_TRUE(reaches_error());
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kPeerLost);
}

TEST_F(Elsewhere, AForkedChildKeepsTheSockets) {
  ASSERT_NO_FATAL_FAILURE(befriend(8));
  ASSERT_EQ(side_.post_recv(1, side_.sge(0, 64)), 0);
  Deadline deadline = conformance::soon();
  while (side_.received.empty() && !deadline.passed()) side_.poll();
  char ready = 0;
  ASSERT_TRUE(get(other_.socket(), ready));  // From the child.
  other_.kill();
  EXPECT_TRUE(reaches_error());
  EXPECT_EQ(nic_->qp_failure(side_.qp.get()), Status::kPeerLost);
}

// A surrounding that forbids files of the size it needs is an error, too, and not the signal that the kernel sends.
TEST(SoftNicDeathTest, FileSizeLimitIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto open_with_limit = [] {
    const rlimit limit{8192, 8192};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
    const auto nic = open_soft({});
    _exit(!nic && nic.error().status() == Status::kLimit ? 0 : 2);
  };
  EXPECT_EXIT(open_with_limit(), testing::ExitedWithCode(0), "");
}

}  // namespace

int run_other(std::string_view role, std::uint64_t argument, int socket) {
  return role == "peer" ? be_peer(argument, socket) : be_stranger(socket);
}

}  // namespace verbena::nic::soft
