// SPDX-License-Identifier: Apache-2.0
// Extension operations along rows of a 16 x 96 matrix: running sum, place and value of the maximum, the four greatest.

#x = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 95 >= 0)>
#four = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 3 >= 0)>
#column = affine_set<(d0) : (d0 >= 0, -d0 + 15 >= 0)>
#rows = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 95 >= 0)>
#rows4 = affine_set<(d0, d1) : (d0 >= 0, -d0 + 3 >= 0, d1 >= 0, -d1 + 3 >= 0)>
#part = affine_set<(d0) : (d0 >= 0, -d0 + 3 >= 0)>
#order1 = affine_map<(d0) -> (d0)>
#order = affine_map<(d0, d1) -> (d0, d1)>

func.func @topk(%x: index, %sums: index, %places: index, %values: index, %top: index, %where: index) attributes {grid = [4]} {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %id = ktdp.get_compute_tile_id : index
  %row = arith.muli %id, %c4 : index
  %X = ktdp.construct_memory_view %x, sizes: [16, 96], strides: [96, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<16x96xf32>
  %S = ktdp.construct_memory_view %sums, sizes: [16, 96], strides: [96, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<16x96xf32>
  %P = ktdp.construct_memory_view %places, sizes: [16], strides: [1] {coordinate_set = #column, memory_space = #ktdp.memory_space<global>} : memref<16xi32>
  %V = ktdp.construct_memory_view %values, sizes: [16], strides: [1] {coordinate_set = #column, memory_space = #ktdp.memory_space<global>} : memref<16xf32>
  %T = ktdp.construct_memory_view %top, sizes: [16, 4], strides: [4, 1] {coordinate_set = #four, memory_space = #ktdp.memory_space<global>} : memref<16x4xf32>
  %W = ktdp.construct_memory_view %where, sizes: [16, 4], strides: [4, 1] {coordinate_set = #four, memory_space = #ktdp.memory_space<global>} : memref<16x4xi32>
  %xt = ktdp.construct_access_tile %X[%row, %c0] {access_tile_set = #rows, access_tile_order = #order} : memref<16x96xf32> -> <4x96xindex>
  %st = ktdp.construct_access_tile %S[%row, %c0] {access_tile_set = #rows, access_tile_order = #order} : memref<16x96xf32> -> <4x96xindex>
  %pt = ktdp.construct_access_tile %P[%row] {access_tile_set = #part, access_tile_order = #order1} : memref<16xi32> -> <4xindex>
  %vt = ktdp.construct_access_tile %V[%row] {access_tile_set = #part, access_tile_order = #order1} : memref<16xf32> -> <4xindex>
  %tt = ktdp.construct_access_tile %T[%row, %c0] {access_tile_set = #rows4, access_tile_order = #order} : memref<16x4xf32> -> <4x4xindex>
  %wt = ktdp.construct_access_tile %W[%row, %c0] {access_tile_set = #rows4, access_tile_order = #order} : memref<16x4xi32> -> <4x4xindex>
  %v = ktdp.load %xt : <4x96xindex> -> tensor<4x96xf32>
  %s = spyreop.scan %v {dimension = 1 : i64, kind = "sum"} : tensor<4x96xf32> -> tensor<4x96xf32>
  ktdp.store %s, %st : tensor<4x96xf32>, <4x96xindex>
  %i, %m = spyreop.arg_reduce %v {dimension = 1 : i64, kind = "max"} : tensor<4x96xf32> -> (tensor<4xi32>, tensor<4xf32>)
  ktdp.store %i, %pt : tensor<4xi32>, <4xindex>
  ktdp.store %m, %vt : tensor<4xf32>, <4xindex>
  %t, %w = spyreop.sort %v {dimension = 1 : i64, descending = true, stable = true, k = 4 : i64} : tensor<4x96xf32> -> (tensor<4x4xf32>, tensor<4x4xi32>)
  ktdp.store %t, %tt : tensor<4x4xf32>, <4x4xindex>
  ktdp.store %w, %wt : tensor<4x4xi32>, <4x4xindex>
  return
}
