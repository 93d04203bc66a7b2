// Letters and calls of several threads to one.
#include "engine/mailbox.hpp"

#include "base/relax.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace verbena::engine {
namespace {

using namespace std::chrono_literals;

[[nodiscard]] Deadline patience() { return Deadline::after(20s); }

struct Numbered : Mailbox::Letter {
  std::vector<int>* into = nullptr;
  int number = 0;
};

[[nodiscard]] Mailbox::Letter& numbered(Numbered& letter, std::vector<int>& into, int number) {
  letter.into = &into;
  letter.number = number;
  letter.open = [](Mailbox::Letter& opened) noexcept {
    auto& mine = static_cast<Numbered&>(opened);
    mine.into->push_back(mine.number);
  };
  return letter;
}

TEST(Mailbox, LettersAreOpenedOnceAndInOrder) {
  Mailbox mailbox;
  EXPECT_TRUE(mailbox.empty());
  mailbox.read();
  std::vector<int> opened;
  std::vector<Numbered> letters(1000);
  for (int i = 0; i < 1000; ++i) {
    mailbox.send(numbered(letters[static_cast<std::size_t>(i)], opened, i));
    EXPECT_FALSE(mailbox.empty());
    if (i % 7 == 0) mailbox.read();
  }
  for (int i = 0; i < 10 && !mailbox.empty(); ++i) mailbox.read();
  EXPECT_TRUE(mailbox.empty());
  ASSERT_EQ(opened.size(), 1000u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(opened[static_cast<std::size_t>(i)], i);
}

TEST(Mailbox, ALetterMayBeSentAgainFromWhereItIsOpened) {
  struct Again : Mailbox::Letter {
    Mailbox* mailbox = nullptr;
    int left = 5;
  } letter;
  Mailbox mailbox;
  letter.mailbox = &mailbox;
  letter.open = [](Mailbox::Letter& opened) noexcept {
    auto& mine = static_cast<Again&>(opened);
    if (mine.left-- != 0) mine.mailbox->send(mine);
  };
  mailbox.send(letter);
  mailbox.read();
  EXPECT_EQ(letter.left, -1);
  EXPECT_TRUE(mailbox.empty());
}

TEST(Mailbox, OpensSomeAheadAndOnce) {
  Mailbox mailbox;
  std::vector<int> opened;
  std::vector<Numbered> letters(6);
  const auto urgent = [](Mailbox::Letter& letter) noexcept {
    auto& mine = static_cast<Numbered&>(letter);
    mine.into->push_back(-mine.number);
  };
  for (int i = 0; i < 6; ++i) {
    Mailbox::Letter& letter = numbered(letters[static_cast<std::size_t>(i)], opened, i);
    if (i % 2 == 1) letter.open = urgent;
    mailbox.send(letter);
  }
  mailbox.open_ahead(urgent);
  EXPECT_EQ(opened, (std::vector{-1, -3, -5}));
  EXPECT_FALSE(mailbox.empty());
  mailbox.open_ahead(urgent);
  mailbox.read();
  EXPECT_EQ(opened, (std::vector{-1, -3, -5, 0, 2, 4}));
  EXPECT_TRUE(mailbox.empty());
}

TEST(Mailbox, CatchesUpWithWhatWasSentBeforeAndNoMore) {
  constexpr int kLetters = 1000;  // More than one read opens.
  Mailbox mailbox;
  std::vector<int> opened;
  std::vector<Numbered> letters(kLetters);
  for (int i = 0; i < kLetters; ++i) mailbox.send(numbered(letters[static_cast<std::size_t>(i)], opened, i));
  struct Again : Mailbox::Letter {
    Mailbox* mailbox = nullptr;
  } again;
  again.mailbox = &mailbox;
  again.open = [](Mailbox::Letter& letter) noexcept { static_cast<Again&>(letter).mailbox->send(letter); };
  mailbox.send(again);
  mailbox.catch_up();
  EXPECT_EQ(opened.size(), letters.size());
  EXPECT_FALSE(mailbox.empty()) << "the letter that sends itself again is there once more";
}

TEST(Mailbox, KeepsTheOrderOfEachSender) {
  constexpr int kSenders = 3;
  constexpr int kLetters = 20'000;
  Mailbox mailbox;
  std::vector<int> opened;
  std::vector<std::vector<Numbered>> letters(kSenders);
  for (auto& some : letters) some = std::vector<Numbered>(kLetters);
  std::vector<std::thread> senders;
  for (int s = 0; s < kSenders; ++s)
    senders.emplace_back([&, s] {
      for (int i = 0; i < kLetters; ++i)
        mailbox.send(
            numbered(letters[static_cast<std::size_t>(s)][static_cast<std::size_t>(i)], opened, s * kLetters + i));
    });
  const Deadline deadline = patience();
  while (opened.size() < std::size_t{kSenders} * kLetters && !deadline.passed()) mailbox.read();
  for (auto& sender : senders) sender.join();
  ASSERT_EQ(opened.size(), std::size_t{kSenders} * kLetters);
  int next[kSenders] = {};
  for (const int number : opened) ASSERT_EQ(number % kLetters, next[number / kLetters]++);
}

/// A thread that reads until it is told to stop.
class Reader {
 public:
  explicit Reader(Mailbox& mailbox) : mailbox_(mailbox) {
    mailbox_.open();
    thread_ = std::thread([this] {
      while (!stops_) {
        mailbox_.read();
        relax();
      }
      mailbox_.shut();
    });
  }
  ~Reader() {
    stops_ = true;
    thread_.join();
  }

 private:
  Mailbox& mailbox_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

constexpr auto kNoWake = [] {};

TEST(Mailbox, CallsAreCarriedOutByTheReader) {
  Mailbox mailbox;
  const auto never = [] { FAIL(); };
  EXPECT_EQ(mailbox.call(never, patience(), kNoWake), Status::kClosed) << "nobody reads";
  mailbox.read();  // It is withdrawn.
  {
    const Reader reader(mailbox);
    std::thread::id by;
    const auto who = [&] { by = std::this_thread::get_id(); };
    EXPECT_EQ(mailbox.call(who, patience(), kNoWake), Status::kOk);
    EXPECT_NE(by, std::thread::id{});
    EXPECT_NE(by, std::this_thread::get_id());
    std::atomic<int> count = 0;
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i)
      callers.emplace_back([&] {
        const auto add = [&] { ++count; };
        for (int k = 0; k < 500; ++k) EXPECT_EQ(mailbox.call(add, patience(), kNoWake), Status::kOk);
      });
    for (auto& caller : callers) caller.join();
    EXPECT_EQ(count, 2000);
  }
  EXPECT_EQ(mailbox.call(never, patience(), kNoWake), Status::kClosed) << "it is shut";
}

TEST(Mailbox, ACallThatDoesNotBeginInTimeIsTakenBack) {
  Mailbox mailbox;
  mailbox.open();  // This thread is the reader, and reads when it likes.
  int late = 0;
  Status status = Status::kOk;
  std::thread caller([&] {
    const auto add = [&] { ++late; };
    status = mailbox.call(add, Deadline::after(2ms), kNoWake);
  });
  caller.join();
  EXPECT_EQ(status, Status::kTimedOut);
  mailbox.read();
  EXPECT_EQ(late, 0);
}

TEST(Mailbox, WithAllPlacesTakenACallIsRefusedOrWaits) {
  constexpr int kPlaces = 64;
  Mailbox mailbox;
  mailbox.open();
  std::atomic<int> begun = 0;
  std::atomic<int> ended = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < kPlaces; ++i)
    callers.emplace_back([&] {
      const auto add = [&] { ++ended; };
      EXPECT_EQ(mailbox.call(add, patience(), [&] { ++begun; }), Status::kOk);
    });
  const Deadline deadline = patience();
  while (begun != kPlaces && !deadline.passed()) std::this_thread::yield();
  const auto add = [&] { ++ended; };
  EXPECT_EQ(mailbox.call(add, Deadline::now(), kNoWake), Status::kAgain);
  std::atomic<bool> is_done = false;
  std::thread patient([&] {
    EXPECT_EQ(mailbox.call(add, Deadline::never(), kNoWake), Status::kOk) << "it waits for its place";
    is_done = true;
  });
  while (!is_done && !deadline.passed()) mailbox.read();
  patient.join();
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(ended, kPlaces + 1);
}

TEST(Mailbox, ShuttingRefusesWhatDidNotBegin) {
  for (int i = 0; i < 200; ++i) {
    Mailbox mailbox;
    std::atomic<int> calls = 0;
    Status status = Status::kOk;
    std::thread caller;
    {
      const Reader reader(mailbox);
      caller = std::thread([&] {
        const auto add = [&] { ++calls; };
        status = mailbox.call(add, patience(), kNoWake);
      });
    }
    caller.join();
    EXPECT_EQ(calls, status == Status::kOk ? 1 : 0);
    EXPECT_TRUE(status == Status::kOk || status == Status::kClosed) << to_string(status);
  }
}

}  // namespace
}  // namespace verbena::engine
