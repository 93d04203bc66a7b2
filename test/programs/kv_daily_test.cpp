// verbena-kv in daily use: many keys, cells, and what a person at a terminal sees of it.
#include "kv_ended.hpp"
#include "scratch.hpp"
#include "shell.hpp"

#include <verbena/deadline.hpp>

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <string>

namespace verbena::test {
namespace {

using namespace std::chrono_literals;

class KvDaily : public testing::Test {
 protected:
  static constexpr const char* kInterrupt = "\x03";

  void SetUp() override { ASSERT_NE(server_.port(), 0) << server_.process().finish().err; }
  Ran run(const Arguments& arguments, const std::string& input = {}) { return server_.run(arguments, input); }
  [[nodiscard]] KvTerminal on_terminal(Arguments arguments, const std::string& history = {}) {
    arguments.insert(arguments.end(), {"-p", std::to_string(server_.port()), "--timeout-ms", "30000"});
    return KvTerminal(arguments, history);
  }

  KvServer server_{{"-m", "64", "--max-cells", "8"}};
};

// --- many keys

TEST_F(KvDaily, ManyKeysInACall) {
  const Ran put = run({"mput", "a/1", "one", "a/2", "two words\n", "b", std::string(10'000, 'l')});
  EXPECT_TRUE(ended(put, 0));
  EXPECT_EQ(std::ranges::count(put.out, '\n'), 3) << "a version for each";
  const Ran got = run({"mget", "a/2", "a/1", "b"});
  EXPECT_TRUE(ended(got, 0));
  EXPECT_EQ(got.out, "a/2\ttwo words\\n\na/1\tone\nb\t" + std::string(10'000, 'l') + "\n");
  const Ran some = run({"mget", "a/1", "none"});
  EXPECT_TRUE(ended(some, 1));
  EXPECT_EQ(some.out, "a/1\tone\n") << "the others come all the same";
  EXPECT_TRUE(contains(some.err, "\"none\": not found"));
  EXPECT_TRUE(ended(run({"mput", "k", "v", "lonely"}), 2));
  EXPECT_TRUE(ended(run({"mput", "--ttl", "1h", "timed", "v", "too", "v"}), 0));
  EXPECT_TRUE(contains(run({"get", "-v", "too"}).err, " s to live"));
  EXPECT_TRUE(ended(run({"mput", "k", "v", "", "v"}), 3)) << "a bad key";
  EXPECT_TRUE(ended(run({"mget", "k"}), 0)) << "and the good one is stored";
}

TEST_F(KvDaily, KeysAreListedByPrefix) {
  Arguments puts{"mput"};
  for (int i = 0; i < 500; ++i) puts.insert(puts.end(), {"k/" + std::to_string(i), "v"});
  puts.insert(puts.end(), {"with\nbreak", "v"});
  ASSERT_TRUE(ended(run(puts), 0));
  EXPECT_EQ(run({"keys", "--count"}).out, "501\n");
  EXPECT_EQ(run({"keys", "k/49"}).out, "k/49\nk/490\nk/491\nk/492\nk/493\nk/494\nk/495\nk/496\nk/497\nk/498\nk/499\n");
  EXPECT_EQ(run({"keys", "w"}).out, "with\\nbreak\n") << "a key is a line";
  EXPECT_EQ(run({"keys", "w", "-0"}).out, std::string("with\nbreak\0", 11));
  const Ran none = run({"keys", "none"});
  EXPECT_TRUE(ended(none, 0));
  EXPECT_EQ(none.out, "");
  EXPECT_TRUE(ended(run({"keys", std::string(1025, 'k')}), 3));
}

TEST_F(KvDaily, FlushWantsToBeSure) {
  const auto fill = [&] { ASSERT_TRUE(ended(run({"mput", "a/1", "v", "a/2", "v", "b", "v"}), 0)); };
  fill();
  EXPECT_TRUE(ended(run({"flush"}), 2));
  EXPECT_TRUE(ended(run({"flush", "", "--yes"}), 2)) << "an empty variable of a script";
  EXPECT_TRUE(ended(run({"flush", "a", "--all", "--yes"}), 2));
  const Ran unsure = run({"flush", "a/"}, "y\n");
  EXPECT_TRUE(ended(unsure, 3)) << "nobody can be asked";
  EXPECT_TRUE(contains(unsure.err, "--yes"));
  EXPECT_EQ(run({"keys", "--count"}).out, "3\n");
  EXPECT_EQ(run({"flush", "a/", "--yes"}).out, "2 keys erased\n");
  EXPECT_EQ(run({"keys"}).out, "b\n");
  fill();
  for (const std::string answer : {"n\r", "\r", "yes please\r"}) {
    KvTerminal terminal = on_terminal({"flush", "a/"});
    ASSERT_TRUE(terminal.await("begin with \"a/\"? [y/N] ")) << terminal.seen();
    terminal.type(answer);
    EXPECT_EQ(terminal.finish(), 3) << terminal.seen();
    EXPECT_TRUE(contains(terminal.seen(), "nothing is erased"));
  }
  KvTerminal terminal = on_terminal({"flush", "--all"});
  ASSERT_TRUE(terminal.await("erase all keys of ")) << terminal.seen();
  terminal.type("y\r");
  ASSERT_TRUE(terminal.await("3 keys erased")) << terminal.seen();
  EXPECT_EQ(terminal.finish(), 0);
  EXPECT_EQ(run({"keys", "--count"}).out, "0\n");
}

// --- cells and versions

TEST_F(KvDaily, CellsCount) {
  EXPECT_EQ(run({"incr", "c"}).out, "1\n");
  EXPECT_EQ(run({"incr", "c", "41"}).out, "42\n");
  EXPECT_EQ(run({"incr", "c", "-2"}).out, "40\n");
  EXPECT_EQ(run({"cell", "c"}).out, "40\n");
  EXPECT_EQ(run({"incr", "c", "-41"}).out, "18446744073709551615\n");
  const Ran none = run({"cell", "none"});
  EXPECT_TRUE(ended(none, 1));
  EXPECT_EQ(run({"keys"}).out, "c\n") << "looking makes no cell";
  ASSERT_TRUE(ended(run({"put", "value", "v"}), 0));
  for (const char* command : {"incr", "cell"}) {
    const Ran wrong = run({command, "value"});
    EXPECT_TRUE(ended(wrong, 3));
    EXPECT_TRUE(contains(wrong.err, "wrong kind"));
  }
  EXPECT_TRUE(contains(run({"get", "c"}).err, "incr and cell"));
  for (const char* step : {"x", "1.5", "", "18446744073709551616", "-9223372036854775809", "1 "}) {
    const Ran wrong = run({"incr", "c", step});
    EXPECT_TRUE(ended(wrong, 2)) << step;
    EXPECT_TRUE(contains(wrong.err, "whole number of 64 bits")) << step;
  }
}

TEST_F(KvDaily, VersionsAreShownWhereCasWantsThem) {
  const std::string version = run({"put", "k", "v"}).out;
  const Ran got = run({"get", "k", "-v"});
  EXPECT_EQ(got.exit, 0);
  EXPECT_EQ(got.out, "v");
  EXPECT_TRUE(contains(got.err, "version " + version));
  const Ran late = run({"cas", "k", "0", "w"});
  EXPECT_TRUE(ended(late, 1));
  EXPECT_TRUE(contains(late.err, "the current version is " + version.substr(0, version.size() - 1)));
  EXPECT_TRUE(ended(run({"cas", "k", version.substr(0, version.size() - 1), "w"}), 0));
}

TEST_F(KvDaily, HitRatesCountGetsByReads) {
  ASSERT_TRUE(ended(run({"mput", "a", "1", "b", "2"}), 0));
  ASSERT_TRUE(ended(run({"mget", "a", "b"}), 0));
  ASSERT_TRUE(ended(run({"get", "none"}), 1));
  if (!have_python()) GTEST_SKIP() << "needs python3";
  const auto statistics = [&](const std::string& expression) {
    return from_json(run({"stats", "--json"}).out, expression);
  };
  EXPECT_EQ(statistics("data[\"hits\"] + data[\"reads\"]"), "2");
  EXPECT_EQ(statistics("data[\"gets\"] - data[\"hits\"]"), "1");
  EXPECT_EQ(statistics("data[\"hit_rate\"]"), "0.6667");
  EXPECT_TRUE(contains(run({"stats"}).out, "hit rate 66.7 %"));
}

// --- at a terminal

TEST_F(KvDaily, GetEndsItsLineOnATerminal) {
  ASSERT_TRUE(ended(run({"mput", "k", "value", "whole", "line\n"}), 0));
  for (const auto& [key, shown] : {std::pair{"k", "value\r\n"}, std::pair{"whole", "line\r\n"}}) {
    KvTerminal terminal = on_terminal({"get", key});
    EXPECT_EQ(terminal.finish(), 0);
    EXPECT_EQ(terminal.seen(), shown);
  }
}

TEST_F(KvDaily, AnInterruptedBenchErasesItsKeys) {
  ASSERT_TRUE(ended(run({"put", "mine", "v"}), 0));
  for (const Arguments& bench :
       {Arguments{"bench", "--seconds", "600"}, Arguments{"bench", "--seconds", "600", "--depth", "8"},
        Arguments{"bench", "--seconds", "600", "--batch", "16"}, Arguments{"bench", "--keys", "500000"}}) {
    SCOPED_TRACE(bench.back());
    KvTerminal terminal = on_terminal(bench);
    const bool is_filling = bench.back() == "500000";
    ASSERT_TRUE(terminal.await(is_filling ? "storing" : "round 1 of 5")) << terminal.seen();
    terminal.type(kInterrupt);
    EXPECT_EQ(terminal.finish(), 3) << terminal.seen();
    EXPECT_TRUE(contains(terminal.seen(), "bench: interrupted; its keys are erased"));
    EXPECT_EQ(run({"keys"}).out, "mine\n");
  }
}

TEST_F(KvDaily, ABenchThatCannotStoreItsKeysErasesThem) {
  const Ran ran = run({"bench", "--keys", "100", "--value-size", "1M"});
  EXPECT_EQ(ran.exit, 3);
  EXPECT_TRUE(contains(ran.err, "cannot store the keys"));
  EXPECT_EQ(run({"keys", "--count"}).out, "0\n");
}

TEST_F(KvDaily, AnInterruptInTheShellEndsTheBenchOnly) {
  KvTerminal terminal = on_terminal({"shell"});
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  for (int round = 0; round < 2; ++round) {
    terminal.type("bench --seconds 600\r");
    ASSERT_TRUE(terminal.await("round 1 of 5")) << terminal.seen();
    terminal.type("put before x\r");
    terminal.type(std::string(kInterrupt) + "put behind x\r");
    ASSERT_TRUE(terminal.await("bench: interrupted")) << terminal.seen();
    ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
    terminal.type("keys\r");
    ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  }
  EXPECT_EQ(run({"keys", "--count"}).out, "0\n") << "nothing typed ahead was run";
  terminal.type("quit\r");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

// The server does not answer, so erasing the keys takes until the time is up.
TEST_F(KvDaily, ASecondInterruptAlwaysEnds) {
  for (const bool in_shell : {false, true}) {
    KvTerminal terminal = in_shell ? on_terminal({"shell"}) : on_terminal({"bench", "--seconds", "600"});
    if (in_shell) {
      ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
      terminal.type("bench --seconds 600\r");
    }
    ASSERT_TRUE(terminal.await("round 1 of 5")) << terminal.seen();
    server_.process().send(SIGSTOP);
    const Deadline deadline = Deadline::after(20s);
    while (!terminal.has_ended() && !deadline.passed()) terminal.type(kInterrupt);
    EXPECT_EQ(terminal.finish(), 128 + SIGINT) << terminal.seen();
    server_.process().send(SIGCONT);
  }
}

TEST_F(KvDaily, TheShellKeepsItsHistoryAndCompletes) {
  const Scratch scratch;
  const std::string file = (scratch.path() / "history").string();
  ASSERT_TRUE(ended(run({"mput", "some/key", "found", "some/kez", "v", "two words", "blank"}), 0));
  {
    KvTerminal terminal = on_terminal({"shell"}, file);
    ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
    terminal.type("mget none some/key\r");
    ASSERT_TRUE(terminal.await("found\r")) << terminal.seen();
  }  // Killed: the line is saved all the same.
  struct stat there{};
  ASSERT_EQ(::stat(file.c_str(), &there), 0);
  EXPECT_EQ(there.st_mode & 0777, 0600u) << "values are nobody else's business";
  KvTerminal terminal = on_terminal({"shell"}, file);
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("\x10\r");  // ^P
  ASSERT_TRUE(terminal.await("some/key\tfound\r") || terminal.await("found\r")) << terminal.seen();
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("ge\t");
  ASSERT_TRUE(terminal.await("t ")) << terminal.seen();
  terminal.type("so\t");
  ASSERT_TRUE(terminal.await("me/ke")) << "as far as it is clear: " << terminal.seen();
  terminal.type("\t");
  ASSERT_TRUE(terminal.await("some/kez\r")) << "then the choices: " << terminal.seen();
  terminal.type("y\t\r");
  ASSERT_TRUE(terminal.await("\nfound\r")) << terminal.seen();
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("get tw\t\r");
  ASSERT_TRUE(terminal.await("\nblank\r")) << "a blank is escaped: " << terminal.seen();
  ASSERT_TRUE(terminal.await("verbena> ")) << terminal.seen();
  terminal.type("quit\r");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

TEST(KvServeAtATerminal, ShowsHowMuchMemoryIsThere) {
  KvTerminal terminal({"serve", "-p", "0", "-m", "128", "-d", "soft"});
  ASSERT_TRUE(terminal.await("memory [")) << terminal.seen();
  ASSERT_TRUE(terminal.await("128.00 MiB")) << terminal.seen();
  ASSERT_TRUE(terminal.await("serving on ")) << terminal.seen();
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

}  // namespace
}  // namespace verbena::test
