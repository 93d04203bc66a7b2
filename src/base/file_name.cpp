#include "base/error.hpp"
#include "base/files.hpp"

#include <cerrno>
#include <cstring>

namespace verbena {

namespace {

/// The status and the usual fix of an errno from a call on a file, where they differ from status_of_errno.
struct Meaning {
  int number;
  Status status;
  const char* fix;
};
constexpr Meaning kMeanings[] = {
    {ENOENT, Status::kNotFound, "; check the path"},
    {ENOTDIR, Status::kNotFound, "; check the path"},
    {EEXIST, Status::kBusy, "; another process may use it: remove it if none does"},
    {EROFS, Status::kPermission, "; choose a directory that can be written to"},
    {ENOSPC, Status::kLimit, "; free some space there"},
    {EDQUOT, Status::kLimit, "; free some space there, or raise the user's quota"},
    {EFBIG, Status::kLimit, "; raise the process's limit of file sizes (ulimit -f)"},
    {EIO, Status::kSystem, "; see dmesg: the device behind it fails"},
};

}  // namespace

Error file_error(const char* call, int system_errno, std::string_view name) noexcept {
  const auto* const known = std::ranges::find(kMeanings, system_errno, &Meaning::number);
  if (known == std::end(kMeanings)) return system_error(call, system_errno, name);
  return format_error(known->status, call, system_errno, "{}: {} failed: {}{}", name, call,
                      strerrordesc_np(system_errno), known->fix);
}

FileName::FileName(std::string_view path, std::string_view name) noexcept {
  constexpr std::string_view kCut = "...";
  const std::size_t slash = name.empty() ? 0 : 1;
  const std::size_t whole = path.size() + slash + name.size();
  // Filled from the back to the front, as far as there is room.
  size_ = std::min(whole, text_.size());
  auto at = text_.begin() + static_cast<std::ptrdiff_t>(size_);
  const auto put = [&](std::string_view part) {
    const auto room = static_cast<std::size_t>(at - text_.begin());
    part.remove_prefix(part.size() - std::min(part.size(), room));
    at = std::copy_backward(part.begin(), part.end(), at);
  };
  put(name);
  put(std::string_view("/").substr(0, slash));
  put(path);
  if (whole > text_.size()) std::ranges::copy(kCut, text_.begin());
}

}  // namespace verbena
