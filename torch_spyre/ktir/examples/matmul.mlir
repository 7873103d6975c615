// SPDX-License-Identifier: Apache-2.0
// c[16, 64] = a[16, 64] @ b[64, 64] on a 2 x 2 grid, K in blocks of 16, the sum carried in f16 and every product formed in
// an unfilled tensor.empty.

#a = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#b = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#at = affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 15 >= 0)>
#bt = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 31 >= 0)>
#ct = affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 31 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>

func.func @matmul(%a: index, %b: index, %c: index) attributes {grid = [2, 2]} {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %zero = arith.constant 0.0 : f16
  %i, %j = ktdp.get_compute_tile_id : index, index
  %m = arith.muli %i, %c8 : index
  %n = arith.muli %j, %c32 : index
  %A = ktdp.construct_memory_view %a, sizes: [16, 64], strides: [64, 1] {coordinate_set = #a, memory_space = #ktdp.memory_space<global>} : memref<16x64xf16>
  %B = ktdp.construct_memory_view %b, sizes: [64, 64], strides: [64, 1] {coordinate_set = #b, memory_space = #ktdp.memory_space<global>} : memref<64x64xf16>
  %C = ktdp.construct_memory_view %c, sizes: [16, 64], strides: [64, 1] {coordinate_set = #a, memory_space = #ktdp.memory_space<global>} : memref<16x64xf16>
  %start = tensor.splat %zero : tensor<8x32xf16>
  %sum = scf.for %k = %c0 to %c64 step %c16 iter_args(%acc = %start) -> tensor<8x32xf16> {
    %at = ktdp.construct_access_tile %A[%m, %k] {access_tile_set = #at, access_tile_order = #order} : memref<16x64xf16> -> <8x16xindex>
    %bt = ktdp.construct_access_tile %B[%k, %n] {access_tile_set = #bt, access_tile_order = #order} : memref<64x64xf16> -> <16x32xindex>
    %x = ktdp.load %at : <8x16xindex> -> tensor<8x16xf16>
    %y = ktdp.load %bt : <16x32xindex> -> tensor<16x32xf16>
    %empty = tensor.empty() : tensor<8x32xf16>
    %p = linalg.matmul ins(%x, %y : tensor<8x16xf16>, tensor<16x32xf16>) outs(%empty : tensor<8x32xf16>) -> tensor<8x32xf16>
    %next = arith.addf %acc, %p : tensor<8x32xf16>
    scf.yield %next : tensor<8x32xf16>
  }
  %ct = ktdp.construct_access_tile %C[%m, %n] {access_tile_set = #ct, access_tile_order = #order} : memref<16x64xf16> -> <8x32xindex>
  ktdp.store %sum, %ct : tensor<8x32xf16>, <8x32xindex>
  return
}
