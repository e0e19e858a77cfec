// Arrays in files: NumPy's .npy (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html),
// or raw little-endian elements.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace npy {

inline std::string text(const std::vector<int64_t> & shape) {
    std::ostringstream out;
    out << "(";
    for (const int64_t extent : shape) {
        out << extent << ",";
    }
    out << ")";
    return out.str();
}

inline int64_t count(const std::vector<int64_t> & shape) {
    int64_t elements = 1;
    for (const int64_t extent : shape) {
        elements *= extent;
    }
    return elements;
}

// What stands behind 'key': in the header, up to one of `ends`.
inline std::string field(const std::string & header, const std::string & key, const char * ends) {
    const size_t at = header.find("'" + key + "'");
    const size_t colon = at == std::string::npos ? at : header.find(':', at);
    const size_t start = colon == std::string::npos ? colon : header.find_first_not_of(' ', colon + 1);
    const size_t end = start == std::string::npos ? start : header.find_first_of(ends, start + 1);
    if (end == std::string::npos) {
        throw std::runtime_error("the header has no " + key);
    }
    return header.substr(start, end - start + 1);
}

template <typename From, typename To>
void convert(const char * bytes, std::vector<To> & to) {
    for (size_t i = 0; i < to.size(); i++) {
        From value;
        std::memcpy(&value, bytes + i * sizeof(From), sizeof(From));
        to[i] = static_cast<To>(value);
        if (std::numeric_limits<From>::is_integer && static_cast<From>(to[i]) != value) {
            throw std::runtime_error("element " + std::to_string(i) + " does not fit 32 bits");
        }
    }
}

// The elements of a file as f32 or i32. Throws when they are not of `shape` or of the kind of T.
template <typename T>
std::vector<T> read(const std::string & path, const std::vector<int64_t> & shape) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw std::runtime_error("it cannot be read");
    }
    const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const size_t elements = (size_t) count(shape);
    std::vector<T> values(elements);
    if (content.compare(0, 6, "\x93NUMPY") != 0) {
        if (content.size() != elements * sizeof(T)) {
            throw std::runtime_error("it has " + std::to_string(content.size()) + " bytes; " +
                                     std::to_string(elements * sizeof(T)) + " are expected");
        }
        std::memcpy(values.data(), content.data(), content.size());
        return values;
    }
    const size_t start = content.size() > 12 && content[6] > 1 ? 12 : 10;
    size_t header_bytes = 0;
    for (size_t i = 8; i < start && i < content.size(); i++) {
        header_bytes |= size_t((unsigned char) content[i]) << (8 * (i - 8));
    }
    if (content.size() < start || header_bytes > content.size() - start) {
        throw std::runtime_error("its header is cut off");
    }
    const std::string header = content.substr(start, header_bytes);
    std::string found = field(header, "shape", ")"), extents;
    for (const char letter : found) {
        extents += letter == ' ' ? "" : letter == ')' && extents.back() != '(' && extents.back() != ','
            ? ",)" : std::string(1, letter);
    }
    if (extents != text(shape)) {
        throw std::runtime_error("its shape is " + extents + "; " + text(shape) + " is expected");
    }
    if (field(header, "fortran_order", ",}").compare(0, 5, "False") != 0) {
        throw std::runtime_error("it is in Fortran order");
    }
    const std::string descr = field(header, "descr", ",}");
    const std::string type = descr.size() > 4 ? descr.substr(1, descr.find('\'', 1) - 1) : descr;
    const char * bytes = content.data() + start + header_bytes;
    const size_t given = content.size() - start - header_bytes;
    const bool floats = !std::numeric_limits<T>::is_integer;
    const size_t size = type.size() == 3 && type[2] >= '1' && type[2] <= '8' ? type[2] - '0' : 1;
    if (given != elements * size) {
        throw std::runtime_error("it is cut off");
    }
    if (floats && type == "<f4") convert<float>(bytes, values);
    else if (floats && type == "<f8") convert<double>(bytes, values);
    else if (floats && type == "|b1") convert<uint8_t>(bytes, values);
    else if (!floats && type == "<i4") convert<int32_t>(bytes, values);
    else if (!floats && type == "<i8") convert<int64_t>(bytes, values);
    else throw std::runtime_error("its elements are " + type + "; " +
                                  (floats ? "<f4 or <f8" : "<i4 or <i8") + " is expected");
    return values;
}

// Write `bytes` of elements such as "<f4".
inline void write(const std::string & path, const std::string & descr,
                  const std::vector<int64_t> & shape, const std::vector<char> & bytes) {
    std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + text(shape) + ", }";
    header.append(63 - (10 + header.size()) % 64, ' ');
    header += '\n';
    std::ofstream file(path, std::ios::binary);
    file.write("\x93NUMPY\x01\x00", 8);
    file.put(char(header.size() & 255)).put(char(header.size() >> 8));
    file << header;
    file.write(bytes.data(), (std::streamsize) bytes.size());
    file.close();
    if (!file) {
        throw std::runtime_error("cannot write " + path);
    }
}

}  // namespace npy
