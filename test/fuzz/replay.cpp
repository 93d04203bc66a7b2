// Runs a target over the files of its corpus, in builds without libFuzzer: what the fuzzer found once stays found,
// under every compiler and sanitizer. usage: fuzz_TARGET DIRECTORY
#include "input.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
    return 2;
  }
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], error)) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const auto& file : files) {
    // Told before it runs: the last name is the one that crashed.
    std::printf("%s\n", file.filename().c_str());
    std::fflush(stdout);
    std::ifstream in(file, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in) error = std::make_error_code(std::errc::io_error);
    const verbena::fuzz::Tight input(std::as_bytes(std::span(bytes)));
    (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.bytes().data()), bytes.size());
  }
  if (files.empty() || error) {
    std::fprintf(stderr, "%s: no corpus, or it cannot be read\n", argv[1]);
    return 1;
  }
  std::printf("(nothing)\n");
  std::fflush(stdout);
  const std::uint8_t none = 0;
  (void)LLVMFuzzerTestOneInput(&none, 0);
  return 0;
}
