#include "base/error.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

namespace verbena {
namespace {

TEST(Error, IsEmptyByDefault) {
  const Error error;
  EXPECT_EQ(error.status(), Status::kOk);
  EXPECT_EQ(error.system_errno(), 0);
  EXPECT_STREQ(error.call(), "");
  EXPECT_STREQ(error.text(), "");
}

TEST(Error, CopiesItsTextAndCutsIt) {
  for (const std::size_t length :
       {std::size_t{0}, Error::kTextBytes - 2, Error::kTextBytes - 1, Error::kTextBytes, 3 * Error::kTextBytes}) {
    std::string text(length, 'x');
    const Error error(Status::kLimit, "call", EMFILE, text);
    text.assign(length, 'y');
    EXPECT_EQ(std::string(error.text()), std::string(std::min(length, Error::kTextBytes - 1), 'x')) << length;
    EXPECT_EQ(error.status(), Status::kLimit);
    EXPECT_EQ(error.system_errno(), EMFILE);
    EXPECT_STREQ(error.call(), "call");
  }
}

TEST(Error, FormatsInPlaceAndCuts) {
  EXPECT_STREQ(format_error(Status::kLimit, "c", 0, "{} of {}", 3, "four").text(), "3 of four");
  const Error cut = format_error(Status::kLimit, "c", 0, "{:>1000}", 7);
  EXPECT_EQ(std::strlen(cut.text()), Error::kTextBytes - 1);
  const std::unexpected<Error> failed = fail(Status::kBadKey, "c", 5, "{}", "no");
  EXPECT_EQ(failed.error().status(), Status::kBadKey);
  EXPECT_EQ(failed.error().system_errno(), 5);
}

TEST(Error, OfASystemCallNamesCallCauseAndFix) {
  const Error error = system_error("memfd_create", EMFILE, "making a file");
  EXPECT_EQ(error.status(), Status::kLimit);
  EXPECT_EQ(error.system_errno(), EMFILE);
  for (const char* part : {"making a file", "memfd_create", "Too many open files", "ulimit -n"})
    EXPECT_NE(std::strstr(error.text(), part), nullptr) << part << " is not in: " << error.text();
  EXPECT_NE(std::strstr(system_error("c", 123456, "w").text(), "unknown errno"), nullptr);
}

Result<int> number_or(const Error* error) {
  if (error != nullptr) return std::unexpected(*error);
  return 42;
}

Result<std::string> use(const Error* first, const Error* second, int& reached) {
  VERBENA_TRY(number_or(first));
  ++reached;
  VERBENA_ASSIGN(const int number, number_or(second));
  ++reached;
  return std::to_string(number);
}

TEST(Try, ReturnsTheErrorAndNothingElse) {
  const Error error(Status::kBusy, "c", 7, "text");
  int reached = 0;
  const auto fine = use(nullptr, nullptr, reached);
  ASSERT_TRUE(fine);
  EXPECT_EQ(*fine, "42");
  EXPECT_EQ(std::exchange(reached, 0), 2);
  for (const bool at_first : {true, false}) {
    const auto failed = use(at_first ? &error : nullptr, &error, reached);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().status(), Status::kBusy);
    EXPECT_EQ(failed.error().system_errno(), 7);
    EXPECT_STREQ(failed.error().text(), "text");
    EXPECT_EQ(std::exchange(reached, 0), at_first ? 0 : 1);
  }
}

Result<std::unique_ptr<int>> make_unique_number() { return std::make_unique<int>(5); }

Result<int> evaluate_once(int& evaluations) {
  const auto count = [&]() -> Result<std::unique_ptr<int>> {
    ++evaluations;
    return make_unique_number();
  };
  VERBENA_TRY(count());
  VERBENA_ASSIGN(auto pointer, count());
  VERBENA_ASSIGN(pointer, count());
  return *pointer;
}

TEST(Try, EvaluatesOnceAndMoves) {
  int evaluations = 0;
  const auto result = evaluate_once(evaluations);
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 5);
  EXPECT_EQ(evaluations, 3);
}

}  // namespace
}  // namespace verbena
