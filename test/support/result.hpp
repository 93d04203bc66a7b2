// GoogleTest assertions on Result: a failure prints the status, the call and the text.
#pragma once

#include <verbena/error.hpp>

#include <gtest/gtest.h>

namespace verbena::test {

template <class T>
[[nodiscard]] testing::AssertionResult is_ok(const Result<T>& result) {
  if (result) return testing::AssertionSuccess();
  const Error& error = result.error();
  return testing::AssertionFailure() << to_string(error.status()) << " from " << error.call() << " (errno "
                                     << error.system_errno() << "): " << error.text();
}

template <class T>
[[nodiscard]] testing::AssertionResult has_status(const Result<T>& result, Status status) {
  if (result) return testing::AssertionFailure() << "succeeded; expected " << to_string(status);
  if (result.error().status() == status) return testing::AssertionSuccess();
  return is_ok(result) << "; expected " << to_string(status);
}

}  // namespace verbena::test

#define ASSERT_OK(expression) ASSERT_TRUE(::verbena::test::is_ok((expression)))
#define EXPECT_OK(expression) EXPECT_TRUE(::verbena::test::is_ok((expression)))
#define ASSERT_STATUS(expression, status) ASSERT_TRUE(::verbena::test::has_status((expression), (status)))
#define EXPECT_STATUS(expression, status) EXPECT_TRUE(::verbena::test::has_status((expression), (status)))
