// SPDX-License-Identifier: Apache-2.0
// Rotary embedding of 8 heads, 64 positions, 128 features on a 4 x 2 grid of (head pair, position half): the halves of every
// row turn by the angle of their position, out = (a cos - b sin, b cos + a sin).

#x = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 63 >= 0, d2 >= 0, -d2 + 127 >= 0)>
#angles = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#half = affine_set<(d0, d1, d2) : (d0 == 0, d1 >= 0, -d1 + 31 >= 0, d2 >= 0, -d2 + 63 >= 0)>
#at = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#order2 = affine_map<(d0, d1) -> (d0, d1)>
#order3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>

func.func @rope(%x: index, %cos: index, %sin: index, %out: index) attributes {grid = [4, 2]} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c32 = arith.constant 32 : index
  %pair, %part = ktdp.get_compute_tile_id : index, index
  %first = arith.muli %pair, %c2 : index
  %position = arith.muli %part, %c32 : index
  %X = ktdp.construct_memory_view %x, sizes: [8, 64, 128], strides: [8192, 128, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<8x64x128xf16>
  %C = ktdp.construct_memory_view %cos, sizes: [64, 64], strides: [64, 1] {coordinate_set = #angles, memory_space = #ktdp.memory_space<global>} : memref<64x64xf16>
  %S = ktdp.construct_memory_view %sin, sizes: [64, 64], strides: [64, 1] {coordinate_set = #angles, memory_space = #ktdp.memory_space<global>} : memref<64x64xf16>
  %O = ktdp.construct_memory_view %out, sizes: [8, 64, 128], strides: [8192, 128, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<8x64x128xf16>
  %ct = ktdp.construct_access_tile %C[%position, %c0] {access_tile_set = #at, access_tile_order = #order2} : memref<64x64xf16> -> <32x64xindex>
  %st = ktdp.construct_access_tile %S[%position, %c0] {access_tile_set = #at, access_tile_order = #order2} : memref<64x64xf16> -> <32x64xindex>
  %c = ktdp.load %ct : <32x64xindex> -> tensor<32x64xf16>
  %s = ktdp.load %st : <32x64xindex> -> tensor<32x64xf16>
  scf.for %i = %c0 to %c2 step %c1 {
    %h = arith.addi %first, %i : index
    %at = ktdp.construct_access_tile %X[%h, %position, 0] {access_tile_set = #half, access_tile_order = #order3} : memref<8x64x128xf16> -> <1x32x64xindex>
    %bt = ktdp.construct_access_tile %X[%h, %position, 64] {access_tile_set = #half, access_tile_order = #order3} : memref<8x64x128xf16> -> <1x32x64xindex>
    %a3 = ktdp.load %at : <1x32x64xindex> -> tensor<1x32x64xf16>
    %b3 = ktdp.load %bt : <1x32x64xindex> -> tensor<1x32x64xf16>
    %a = tensor.collapse_shape %a3 [[0, 1], [2]] : tensor<1x32x64xf16> into tensor<32x64xf16>
    %b = tensor.collapse_shape %b3 [[0, 1], [2]] : tensor<1x32x64xf16> into tensor<32x64xf16>
    %ac = arith.mulf %a, %c : tensor<32x64xf16>
    %bs = arith.mulf %b, %s : tensor<32x64xf16>
    %left = arith.subf %ac, %bs : tensor<32x64xf16>
    %bc = arith.mulf %b, %c : tensor<32x64xf16>
    %as = arith.mulf %a, %s : tensor<32x64xf16>
    %right = arith.addf %bc, %as : tensor<32x64xf16>
    %l3 = tensor.expand_shape %left [[0, 1], [2]] output_shape [1, 32, 64] : tensor<32x64xf16> into tensor<1x32x64xf16>
    %r3 = tensor.expand_shape %right [[0, 1], [2]] output_shape [1, 32, 64] : tensor<32x64xf16> into tensor<1x32x64xf16>
    %lt = ktdp.construct_access_tile %O[%h, %position, 0] {access_tile_set = #half, access_tile_order = #order3} : memref<8x64x128xf16> -> <1x32x64xindex>
    %rt = ktdp.construct_access_tile %O[%h, %position, 64] {access_tile_set = #half, access_tile_order = #order3} : memref<8x64x128xf16> -> <1x32x64xindex>
    ktdp.store %l3, %lt : tensor<1x32x64xf16>, <1x32x64xindex>
    ktdp.store %r3, %rt : tensor<1x32x64xf16>, <1x32x64xindex>
  }
  return
}
