// Calls of the C API with an argument that they refuse.
#pragma once

#include <verbena/rdma.h>

#include <words.hpp>

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::test {

/// What no text of the C API has, for it belongs to the C++ API.
inline constexpr std::array<std::string_view, 6> kOfCxx{"::", "kClosed", "kBusy", "kQueue", "kDiscard", "kHandler"};

struct Wrong {
  const char* call;           ///< Its name, which the text begins with.
  std::function<int()> make;  ///< Makes it; its code.
  int code;
  std::vector<std::string> says{};  ///< The argument, its value, its range.
};

inline void expect_refused(const std::vector<Wrong>& all) {
  for (const Wrong& each : all) {
    std::string trace = each.call;
    for (const std::string& part : each.says) trace += " | " + part;
    SCOPED_TRACE(trace);
    EXPECT_EQ(each.make(), each.code);
    const std::string text = rdmaErrorDetail();
    const std::string front = std::string(each.call) + ": ";
    EXPECT_TRUE(text.starts_with(front)) << text;
    if (text.starts_with(front)) expect_words(std::string_view(text).substr(front.size()), kOfCxx, each.says);
  }
}

}  // namespace verbena::test
